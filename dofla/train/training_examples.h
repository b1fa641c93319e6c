// What a model is fine-tuned on: examples of which every optimizer step takes some.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "dofla/core/json.h"
#include "dofla/data/batches.h"
#include "dofla/data/tasks/candidate.h"
#include "dofla/model/transformer.h"
#include "dofla/train/teacher_file.h"

namespace dofla {

// How much memory a step may take, whatever its batch.
struct StepMemory {
  // It is taken in parts of at most so many tokens, but at least an example.
  int64_t part_tokens = 2048;
  bool recompute = false;  // less memory for a third more time: Tape::recompute
};

// Parts that keep a device busy: a GPU wants many tokens at once.
int64_t part_tokens_for(const Device& device);

struct TrainingExamples {
  int64_t count = 0;
  Json about;                                                     // what tells them from others
  std::function<int64_t(std::span<const int64_t> which)> tokens;  // of some examples
  // The sum of the losses of some examples, in nats; the gradients of `share` times it are added.
  std::function<double(const Transformer& model, std::span<const int64_t> which, double share,
                       const StepMemory& memory, Gradients& gradients)>
      differentiate;
  // Says which examples differentiate() will be asked for next, so that they can be read meanwhile;
  // may be empty.
  std::function<void(const std::vector<int64_t>& which)> announce = {};
};

// Each asks for the right one of its candidates (candidate_gradient.h). The questions must outlive
// the examples.
TrainingExamples examples_of(const std::vector<EncodedQuestion>& questions);

// The loss of a window is the mean over its tokens: the cross-entropy of the next one
// (next_token_gradient.h), or with a teacher the divergence from it (imitation_gradient.h), or from
// what a file has of it for these windows (taught_gradient.h). Teacher and file must outlive the
// examples.
TrainingExamples examples_of(const WindowSet& windows, const Transformer* teacher = nullptr);
TrainingExamples examples_of(const WindowSet& windows, const TeacherFile& teacher);

}  // namespace dofla
