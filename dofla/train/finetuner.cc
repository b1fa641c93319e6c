#include "dofla/train/finetuner.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dofla/checkpoint/fingerprint.h"
#include "dofla/core/error.h"
#include "dofla/model/identity.h"

namespace dofla {
namespace {

constexpr int64_t kPatience = 10;  // steps that may go wrong before the run is given up
// A loss so many times that of the start has run away. Guessing costs less than two nats, and a
// model that starts below one may go astray and come back.
constexpr double kRunawayFactor = 10;

Json describe(const Transformer& model, const TrainingExamples& examples,
              const FinetuneOptions& options) {
  Json run = options.run;
  run.update(examples.about);
  run.update({{"device", model.device().name()},
              {"model", to_string(identity_of(model.config()))},
              {"products", name(model.weights().token_embedding.dtype())},
              {"weights", fingerprint_of(parameters(model, {.weights = true, .features = true}))},
              {"train", name(options.train)},
              {"epochs", options.epochs},
              {"batch", options.batch},
              {"lr", options.learning_rate},
              {"feature_rate", options.feature_rate},
              {"warmup", options.warmup},
              {"weight_decay", options.weight_decay},
              {"clip", options.clip},
              {"moments", name(options.moments)},
              {"seed", options.seed},
              {"keep", options.keep_best ? "best" : "last"},
              {"part_tokens", options.part_tokens}});
  if (options.lora > 0) run["lora"] = options.lora;
  return run;
}

Trained trained_by(const FinetuneOptions& options) {
  return {.weights = options.train == TrainedPart::kAll,
          .attention = options.train == TrainedPart::kAttention,
          .features = true};
}

Transformer& trainable(Transformer& model, const FinetuneOptions& options) {
  require(options.lora == 0 || (options.lora > 0 && options.train == TrainedPart::kAttention),
          "finetune: low-rank updates of rank {} are of the attention, not of: {}", options.lora,
          name(options.train));
  if (!model.is_trainable()) model.make_trainable(DType::kBF16, trained_by(options));
  if (parameters(model, trained_by(options)).empty())
    fail("a softmax model has no features to train: train its attention, or all of it");
  return model;
}

std::optional<LoraUpdates> lora_of(const Transformer& model, const FinetuneOptions& options) {
  if (options.lora == 0) return std::nullopt;
  return LoraUpdates(model, options.lora, options.seed);
}

NamedTensors learning(const Transformer& model, const FinetuneOptions& options,
                      const std::optional<LoraUpdates>& lora) {
  NamedTensors all = parameters(model, trained_by(options));
  return lora ? lora->factors(all) : all;
}

Schedule schedule_of(const FinetuneOptions& options, int64_t examples) {
  require(examples > 0, "finetune: nothing to train on");
  require(options.epochs > 0 && options.batch > 0 && options.part_tokens > 0,
          "finetune: {} epochs of batches of {} in parts of {} tokens", options.epochs,
          options.batch, options.part_tokens);
  require(options.warmup >= 0 && options.warmup < 1, "finetune: a warm-up of {} of the steps",
          options.warmup);
  const int64_t batches = (examples + options.batch - 1) / options.batch;
  return {.steps = options.epochs * batches, .warmup = options.warmup, .decay = Decay::kLinear};
}

}  // namespace

Finetuner::Finetuner(Transformer& model, const TrainingExamples& examples,
                     const FinetuneOptions& options)
    : model_(trainable(model, options)),
      examples_(examples),
      options_(options),
      schedule_(schedule_of(options, examples.count)),
      passes_(examples.count, options.seed),
      run_(describe(model, examples, options)),
      gradients_(new_gradients(model, trained_by(options))),
      lora_(lora_of(model, options)),
      optimizer_(learning(model, options, lora_),
                 {.weight_decay = options.weight_decay,
                  .feature_rate = options.feature_rate,
                  .clip = options.clip,
                  .moments = options.moments,
                  .seed = options.seed},
                 options.group,
                 lora_ ? std::vector<Tensor>() : rounded_copies(model, trained_by(options))) {}

std::vector<int64_t> Finetuner::batch(int64_t step) {
  const int64_t begin = step % steps_per_epoch() * options_.batch;
  const int64_t end = std::min(begin + options_.batch, examples_.count);
  const int64_t epoch = step / steps_per_epoch() * examples_.count;
  std::vector<int64_t> which;
  for (int64_t i = begin; i < end; ++i) which.push_back(passes_.at(epoch + i));
  return which;
}

double Finetuner::learning_rate(int64_t step) const {
  return options_.learning_rate * rate_at(schedule_, step);
}

int64_t Finetuner::step() {
  require(steps_done() < steps(), "finetune: all {} steps are done", steps());
  require(!waits_for_judgement(), "finetune: step {} waits for a judgement", steps_done());
  const std::vector<int64_t> examples = batch(steps_done());
  const double share = 1 / static_cast<double>(examples.size());
  if (examples_.announce && steps_done() + 1 < steps())
    examples_.announce(own_part(batch(steps_done() + 1)));
  gradients_.clear();
  NamedTensors gradients;
  const double loss = differentiate(examples, share, gradients);
  const bool taken = optimizer_.step(gradients, learning_rate(steps_done()));
  follow_optimizer();
  loss_.push_back(taken ? loss * share : std::numeric_limits<double>::quiet_NaN());
  stop_if_diverged();
  return examples_.tokens(examples);
}

std::vector<int64_t> Finetuner::own_part(const std::vector<int64_t>& examples) const {
  const Share own = options_.group.share(std::ssize(examples));
  return {examples.begin() + own.begin, examples.begin() + own.end};
}

void Finetuner::follow_optimizer() {
  if (!lora_) return;
  lora_->apply();
  model_.follow_parameters();
}

double Finetuner::differentiate(const std::vector<int64_t>& examples, double share,
                                NamedTensors& gradients) {
  const std::vector<int64_t> own = own_part(examples);
  // Ranks add gradients up while the backward runs. Those of low-rank updates follow from all of
  // them, and a GPU's stream would only take both in turn.
  if (!options_.group.alone() && !lora_ && !model_.device().is_cuda()) {
    optimizer_.expect(parameters(gradients_), layers_of(gradients_));
    gradients_.finished = [this](int64_t layer) { optimizer_.finished(layer); };
  }
  double loss = 0;
  if (!own.empty())
    loss = examples_.differentiate(model_, own, share, {options_.part_tokens, options_.recompute},
                                   gradients_);
  gradients = parameters(gradients_);
  if (lora_) gradients = lora_->gradients(gradients);
  options_.group.sum(std::span(&loss, 1));
  return loss;
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

bool Finetuner::waits_for_judgement() const {
  return static_cast<int64_t>(judgements_.size()) <= steps_done() / steps_per_epoch() &&
         (steps_done() == 0 || at_epoch_end());
}

void Finetuner::take(const Judgement& judgement) {
  require(waits_for_judgement(), "finetune: no judgement wanted after step {}", steps_done());
  judgements_.push_back(judgement);
  if (options_.keep_best && kept() + 1 == judgements_.size()) best_ = optimizer_.copy();
}

size_t Finetuner::kept() const {
  if (judgements_.size() < 2) return 0;
  if (!options_.keep_best) return judgements_.size() - 1;
  const auto best =
      std::ranges::max_element(judgements_.begin() + 1, judgements_.end(), {}, &Judgement::score);
  if (best->score < judgements_.front().score) return 0;
  return static_cast<size_t>(best - judgements_.begin());
}

FinetuneResult Finetuner::finish() {
  require(is_over(), "finetune: {} of {} steps are done", steps_done(), steps());
  if (best_) optimizer_.take(*best_);
  follow_optimizer();
  return {.before = judgements_.front(),
          .epochs = {judgements_.begin() + 1, judgements_.end()},
          .kept = static_cast<int64_t>(kept()),
          .loss = loss_,
          .run = run_};
}

}  // namespace dofla
