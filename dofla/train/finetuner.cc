#include "dofla/train/finetuner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "dofla/core/error.h"
#include "dofla/data/batches.h"
#include "dofla/model/identity.h"
#include "dofla/train/candidate_gradient.h"

namespace dofla {
namespace {

constexpr Trained kEverything = {.weights = true, .features = true};
constexpr int64_t kPatience = 10;  // steps that may go wrong before the run is given up
// A loss so many times that of the start has run away. Guessing costs less than two nats, and a
// model that starts below one may go astray and come back.
constexpr double kRunawayFactor = 10;

// A fingerprint of whatever is given to it, word by word (FNV-1a).
class Fingerprint {
 public:
  void add(uint64_t word) { hash_ = (hash_ ^ word) * 0x100000001b3u; }
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

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

std::string fingerprint(const NamedTensors& parameters) {
  Fingerprint print;
  for (const auto& [name, tensor] : parameters) {
    const Tensor here = tensor.to(Device());
    for (int64_t i = 0; i < here.count(); ++i)
      print.add(std::bit_cast<uint32_t>(here.data<float>()[i]));
  }
  return print.text();
}

Json describe(const Transformer& model, const std::vector<EncodedQuestion>& questions,
              const FinetuneOptions& options) {
  Json run = options.run;
  run.update({{"device", model.device().name()},
              {"model", to_string(identity_of(model.config()))},
              {"weights", fingerprint(parameters(model, kEverything))},
              {"questions", questions.size()},
              {"text", fingerprint(questions)},
              {"epochs", options.epochs},
              {"batch", options.batch},
              {"lr", options.learning_rate},
              {"warmup", options.warmup},
              {"weight_decay", options.weight_decay},
              {"clip", options.clip},
              {"seed", options.seed},
              {"keep", options.keep_best ? "best" : "last"},
              {"part_tokens", options.part_tokens}});
  return run;
}

Transformer& trainable(Transformer& model) {
  model.make_trainable();
  return model;
}

Schedule schedule_of(const FinetuneOptions& options, size_t questions) {
  require(questions > 0, "finetune: no question given");
  require(options.epochs > 0 && options.batch > 0 && options.part_tokens > 0,
          "finetune: {} epochs of batches of {} in parts of {} tokens", options.epochs,
          options.batch, options.part_tokens);
  require(options.warmup >= 0 && options.warmup < 1, "finetune: a warm-up of {} of the steps",
          options.warmup);
  const int64_t batches = (static_cast<int64_t>(questions) + options.batch - 1) / options.batch;
  return {.steps = options.epochs * batches, .warmup = options.warmup, .decay = Decay::kLinear};
}

// The batch in parts whose tokens, padding included, are within the limit; long questions with long
// ones.
std::vector<std::vector<const EncodedQuestion*>> parts_of(std::vector<const EncodedQuestion*> batch,
                                                          int64_t most) {
  std::ranges::stable_sort(
      batch, {}, [](const EncodedQuestion* question) { return batch_shape(*question).tokens; });
  std::vector<std::vector<const EncodedQuestion*>> parts;
  int64_t sequences = 0;
  for (const EncodedQuestion* question : batch) {
    const BatchShape shape = batch_shape(*question);
    if (parts.empty() || (sequences + shape.sequences) * shape.tokens > most) {
      parts.emplace_back();
      sequences = 0;
    }
    parts.back().push_back(question);
    sequences += shape.sequences;
  }
  return parts;
}

}  // namespace

Finetuner::Finetuner(Transformer& model, const std::vector<EncodedQuestion>& questions,
                     const FinetuneOptions& options)
    : model_(trainable(model)),
      questions_(questions),
      options_(options),
      schedule_(schedule_of(options, questions.size())),
      run_(describe(model, questions, options)),
      gradients_(new_gradients(model, kEverything)),
      optimizer_(parameters(model, kEverything),
                 {.weight_decay = options.weight_decay, .clip = options.clip}) {}

std::vector<const EncodedQuestion*> Finetuner::batch(int64_t step) const {
  const auto count = static_cast<int64_t>(questions_.size());
  const int64_t begin = step % steps_per_epoch() * options_.batch;
  const auto order = shuffled_order(count, options_.seed, step / steps_per_epoch());
  std::vector<const EncodedQuestion*> taken;
  for (int64_t i = begin; i < std::min(begin + options_.batch, count); ++i)
    taken.push_back(&questions_[static_cast<size_t>(order[static_cast<size_t>(i)])]);
  return taken;
}

void Finetuner::step() {
  require(steps_done() < steps(), "finetune: all {} steps are done", steps());
  require(!waits_for_accuracy(), "finetune: step {} waits for an accuracy", steps_done());
  const auto questions = batch(steps_done());
  const double share = 1 / static_cast<double>(questions.size());
  gradients_.clear();
  double loss = 0;
  for (const auto& part : parts_of(questions, options_.part_tokens))
    loss += candidate_gradient(model_, part, share, options_.recompute, gradients_);
  const double rate = options_.learning_rate * rate_at(schedule_, steps_done());
  const bool taken = optimizer_.step(parameters(gradients_), rate);
  loss_.push_back(taken ? loss * share : std::numeric_limits<double>::quiet_NaN());
  stop_if_diverged();
}

int64_t Finetuner::patience() const {
  return std::min(kPatience, steps());
}

double Finetuner::runaway_loss() const {
  const auto start = std::ranges::find_if(loss_, [](double x) { return std::isfinite(x); });
  return kRunawayFactor * (start == loss_.end() ? 1 : std::max(*start, 1.0));
}

// The mean of the last steps that were finite; NaN if none was.
double Finetuner::recent_loss() const {
  double sum = 0;
  int64_t finite = 0;
  for (auto at = loss_.end() - std::min(patience(), steps_done()); at != loss_.end(); ++at)
    if (!std::isnan(*at)) {
      sum += *at;
      ++finite;
    }
  return sum / static_cast<double>(finite);
}

bool Finetuner::healthy() const {
  return loss_.empty() || (!std::isnan(loss_.back()) && recent_loss() <= runaway_loss());
}

void Finetuner::stop_if_diverged() const {
  const double recent = recent_loss();
  if (steps_done() < patience() || recent <= runaway_loss()) return;
  const std::string what = std::isnan(recent)
                               ? fmt::format("the last {} steps were not finite", patience())
                               : fmt::format("the loss has grown to {:.3g}", recent);
  const std::string kept = options_.checkpoint.empty()
                               ? ""
                               : fmt::format("; {} is the run as it was after step {}",
                                             options_.checkpoint.string(), saved_step_);
  fail("step {}: {}: start over with a lower learning rate{}", steps_done(), what, kept);
}

bool Finetuner::waits_for_accuracy() const {
  return static_cast<int64_t>(accuracy_.size()) <= steps_done() / steps_per_epoch() &&
         (steps_done() == 0 || at_epoch_end());
}

void Finetuner::take(const TaskResult& accuracy) {
  require(waits_for_accuracy(), "finetune: no accuracy wanted after step {}", steps_done());
  accuracy_.push_back(accuracy);
  if (!options_.keep_best || accuracy_.size() < 2 || best_epoch() + 2 != accuracy_.size()) return;
  best_.clear();
  for (const auto& [name, tensor] : optimizer_.parameters())
    best_.emplace_back(name, tensor.device().is_cuda() ? tensor.to(Device()) : tensor.clone());
}

size_t Finetuner::best_epoch() const {
  const auto acc = [](const TaskResult& result) { return result.acc.mean; };
  const auto first = accuracy_.begin() + 1;
  return static_cast<size_t>(std::ranges::max_element(first, accuracy_.end(), {}, acc) - first);
}

FinetuneResult Finetuner::finish() {
  require(steps_done() == steps() && !waits_for_accuracy(), "finetune: {} of {} steps are done",
          steps_done(), steps());
  NamedTensors parameters = optimizer_.parameters();
  for (size_t i = 0; i < best_.size(); ++i) parameters[i].second.assign(best_[i].second);
  const auto last = static_cast<int64_t>(accuracy_.size()) - 2;
  return {.before = accuracy_.front(),
          .epochs = {accuracy_.begin() + 1, accuracy_.end()},
          .kept = options_.keep_best ? static_cast<int64_t>(best_epoch()) : last,
          .loss = loss_,
          .run = run_};
}

}  // namespace dofla
