// How long work reports progress and is cancelled: the library calls a function, which the caller
// displays, and between two steps reads a flag, by which the caller asks it to stop. Nothing in
// dofla/ prints or handles signals.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace dofla {

// A step of training, when it is done.
struct TrainingStep {
  int64_t step = 0;                       // counted from 1
  double loss = 0;                        // the mean over the layers; NaN if the step was skipped
  std::vector<double> layer_losses = {};  // where every layer has its own
  double learning_rate = 0;               // of weights; of z where features are trained
  std::optional<double> alpha_rate = {};  // of log α
  double tokens_per_second = 0;
  double seconds = 0;  // since the training began, or went on after an interruption
};

struct ProgressUpdate {
  std::string_view stage;  // "evaluate", "degrees of freedom", ...
  int64_t done = 0;
  int64_t total = 0;                       // 0 when unknown
  std::string_view unit;                   // "tokens", "heads", "steps"
  const TrainingStep* training = nullptr;  // where the work is training
};

// What long work ends with when it was asked to stop. Not an error: what could be kept was kept.
class Cancelled : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Progress {
 public:
  Progress() = default;

  // Both may be empty. The flag says that the work should stop; it must outlive the work.
  template <std::invocable<const ProgressUpdate&> Tell>
  Progress(Tell tell, const std::atomic<bool>* stop = nullptr)
      : tell_(std::move(tell)), stop_(stop) {}

  void tell(const ProgressUpdate& update) const {
    if (tell_) tell_(update);
  }
  // The same, with another listener.
  template <std::invocable<const ProgressUpdate&> Tell>
  Progress also_to(Tell other) const {
    return Progress(
        [first = *this, other](const ProgressUpdate& update) {
          first.tell(update);
          other(update);
        },
        stop_);
  }
  bool stop_asked() const { return stop_ != nullptr && stop_->load(std::memory_order_relaxed); }

 private:
  std::function<void(const ProgressUpdate&)> tell_;
  const std::atomic<bool>* stop_ = nullptr;
};

// Throws Cancelled, saying how far the work had come.
[[noreturn]] void cancel(const ProgressUpdate& update);

// The same if the caller wants the work to stop.
void stop_if_asked(const Progress& progress, const ProgressUpdate& update);

// For work that has nothing to keep: tells, and throws Cancelled if it should stop.
void report(const Progress& progress, const ProgressUpdate& update);

}  // namespace dofla
