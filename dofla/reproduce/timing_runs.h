// How long inference and training take, as runs. Everything that is compared is measured in one
// run, in turns, so that a machine that slows down does so for all.
#pragma once

#include "dofla/reproduce/run.h"
#include "dofla/reproduce/study.h"

namespace dofla {

// One for every cost. The study and the folder must outlive them.
Run inference_run(const Study& study, const RunFolder& folder, int64_t cost);
Run training_time_run(const Study& study, int64_t cost);

// Milliseconds a token, at one length of a sequence.
struct InferenceTime {
  double prefill = 0;  // of those read at once: all but the last few
  double decode = 0;   // of the last few, generated one by one
};

// [1 + strategies, lengths of the suite]: the teacher, then a student of every strategy.
using InferenceResult = std::vector<std::vector<InferenceTime>>;
InferenceResult read_inference(const Study& study, const RunFolder& folder, int64_t cost);

// Milliseconds a sample, which is a window of text.
struct TrainingTime {
  double teacher_forward = 0;
  std::vector<double> losses;  // a training step, one for every loss of the suite
};
TrainingTime read_training_time(const Study& study, const RunFolder& folder, int64_t cost);

}  // namespace dofla
