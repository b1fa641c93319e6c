#include "dofla/train/training_examples.h"

#include <algorithm>

#include "dofla/core/fingerprint.h"
#include "dofla/model/imitation_gradient.h"
#include "dofla/model/next_token_gradient.h"
#include "dofla/train/candidate_gradient.h"
#include "dofla/train/taught_gradient.h"

namespace dofla {
namespace {

std::string fingerprint(const std::vector<EncodedQuestion>& questions) {
  Fingerprint print;
  for (const EncodedQuestion& question : questions) {
    print.add(static_cast<uint64_t>(question.gold));
    for (const Candidate& candidate : question.candidates) {
      print.add(static_cast<uint64_t>(candidate.scored_from));
      for (const int64_t id : candidate.ids) print.add(static_cast<uint64_t>(id));
    }
  }
  return print.text();
}

// Of several passes over the parts of a step, the last one completes the gradients.
class LastPass {
 public:
  explicit LastPass(Gradients& gradients)
      : gradients_(gradients), finished_(std::move(gradients.finished)) {
    gradients_.finished = nullptr;
  }
  void begins() { gradients_.finished = std::move(finished_); }

 private:
  Gradients& gradients_;
  std::function<void(int64_t layer)> finished_;
};

// The mean loss of some windows; the gradients of `share` times it are added.
using WindowGradient =
    std::function<double(const Transformer& model, std::span<const int64_t> which,
                         const Tensor& ids, bool recompute, double share, Gradients& gradients)>;

TrainingExamples examples_of(const WindowSet& windows, const WindowGradient& gradient) {
  TrainingExamples examples = {static_cast<int64_t>(windows.size()),
                               {{"windows", windows.size()}, {"text", fingerprint_of(windows)}},
                               {},
                               {}};
  const int64_t length = windows.length();
  const auto ahead = std::make_shared<WindowsAhead>(windows);
  examples.tokens = [length](std::span<const int64_t> which) { return std::ssize(which) * length; };
  examples.announce = [ahead](const std::vector<int64_t>& which) { ahead->announce(which); };
  examples.differentiate = [ahead, length, gradient](
                               const Transformer& model, std::span<const int64_t> which,
                               double share, const StepMemory& memory, Gradients& gradients) {
    const int64_t most = std::max<int64_t>(memory.part_tokens / length, 1);
    const Tensor all = ahead->take({which.begin(), which.end()});
    double loss = 0;
    LastPass last(gradients);
    for (int64_t begin = 0; begin < all.size(0); begin += most) {
      if (begin + most >= all.size(0)) last.begins();
      const Tensor ids = all.slice(begin, std::min(begin + most, all.size(0)));
      const auto part = which.subspan(static_cast<size_t>(begin), static_cast<size_t>(ids.size(0)));
      const auto count = static_cast<double>(ids.size(0));
      const double mean = gradient(model, part, ids, memory.recompute, count * share, gradients);
      loss += count * mean;
    }
    return loss;
  };
  return examples;
}

}  // namespace

int64_t part_tokens_for(const Device& device) {
  return device.is_cuda() ? 16384 : 2048;
}

TrainingExamples examples_of(const std::vector<EncodedQuestion>& questions) {
  TrainingExamples examples = {static_cast<int64_t>(questions.size()),
                               {{"questions", questions.size()}, {"text", fingerprint(questions)}},
                               {},
                               {}};
  examples.tokens = [&questions](std::span<const int64_t> which) {
    int64_t sum = 0;
    for (const int64_t i : which)
      for (const Candidate& candidate : questions[static_cast<size_t>(i)].candidates)
        sum += static_cast<int64_t>(candidate.ids.size());
    return sum;
  };
  examples.differentiate = [&questions](const Transformer& model, std::span<const int64_t> which,
                                        double share, const StepMemory& memory,
                                        Gradients& gradients) {
    std::vector<const EncodedQuestion*> batch;
    for (const int64_t i : which) batch.push_back(&questions[static_cast<size_t>(i)]);
    double loss = 0;
    const auto parts = question_batches(batch, memory.part_tokens);
    LastPass last(gradients);
    for (const auto& part : parts) {
      if (&part == &parts.back()) last.begins();
      loss += candidate_gradient(model, part, share, memory.recompute, gradients);
    }
    return loss;
  };
  return examples;
}

TrainingExamples examples_of(const WindowSet& windows, const Transformer* teacher) {
  return examples_of(
      windows, [teacher](const Transformer& model, std::span<const int64_t>, const Tensor& ids,
                         bool recompute, double share, Gradients& gradients) {
        return teacher == nullptr
                   ? next_token_gradient(model, ids, recompute, gradients, share)
                   : imitation_gradient(model, *teacher, ids, recompute, gradients, share);
      });
}

TrainingExamples examples_of(const WindowSet& windows, const TeacherFile& teacher) {
  return examples_of(
      windows, [&teacher](const Transformer& model, std::span<const int64_t> which,
                          const Tensor& ids, bool recompute, double share, Gradients& gradients) {
        return taught_gradient(model, teacher.read(which), ids, recompute, gradients, share);
      });
}

}  // namespace dofla
