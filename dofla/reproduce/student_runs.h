// The students as runs, and what these leave.
#pragma once

#include "dofla/reproduce/run.h"
#include "dofla/reproduce/study.h"

namespace dofla {

// The study and the folder must outlive the run.
Run student_run(const Study& study, const RunFolder& folder, const Student& student);

// The plan of a student that is no baseline: with the exact keys that the suite gives it.
DimensionPlan with_exact_keys(const Study& study, DimensionPlan plan);

// How a student is distilled, whatever its plan and however many steps.
DistillOptions student_options(const Study& study, const Student& student,
                               const DimensionPlan& plan, int64_t steps);

struct StudentResult {
  double teacher_loss = 0;  // on the held-out text, in nats a token
  double student_loss = 0;
  double features = 0;  // M, the mean over layers and heads
  double steps = 0;
  double step_seconds = 0;  // of training; 0 if nothing was trained
};

// Error if the student was not made or its record is damaged.
StudentResult read_student_result(const RunFolder& folder, const Student& student);

// The features that a student's run left in the study's folder. Error if they are not there.
FeatureSet load_student(const Study& study, const Student& student);

}  // namespace dofla
