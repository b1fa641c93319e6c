// Accuracy on tasks as runs: of the teacher and of every student of the first seed, as they are and
// fine-tuned.
#pragma once

#include <memory>
#include <optional>

#include "dofla/data/tasks/task.h"
#include "dofla/data/tasks/task_result.h"
#include "dofla/reproduce/run.h"
#include "dofla/reproduce/study.h"

namespace dofla {

// The students that answer questions, in the order of their runs.
std::vector<Student> answering_students(const Suite& suite);

// One run for every task and model. Reads the files of the tasks at once: Error if one is missing
// or malformed. The study and the folder must outlive the runs.
std::vector<Run> task_runs(const Study& study, const RunFolder& folder);

struct TaskAccuracy {
  double chance = 0;                  // the accuracy of guessing
  Accuracy zero_shot;                 // acc; the record has acc_norm, too
  std::optional<Accuracy> finetuned;  // of the epoch that is kept
};
// Of a student, or of the teacher. Error if there is none, or the record is damaged.
TaskAccuracy read_task(const RunFolder& folder, const std::string& task, const Student* student);

}  // namespace dofla
