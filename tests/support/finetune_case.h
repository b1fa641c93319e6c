// A tiny model and questions to fine-tune it on, for the tests of either device.
#pragma once

#include <vector>

#include "dofla/core/random.h"
#include "dofla/distill/feature_init.h"
#include "dofla/evaluate/tasks.h"
#include "dofla/linear/linear_model.h"
#include "dofla/plan/allocate.h"
#include "dofla/train/finetune.h"
#include "tests/support/fixtures.h"
#include "tests/support/random_values.h"

namespace dofla::test {

class FinetuneCase {
 protected:
  static constexpr Trained kEverything = {.weights = true, .features = true};

  const Checkpoint checkpoint{fs::path(DOFLA_SOURCE_DIR) / "tests/models/stories260K"};
  const ScratchFolder scratch;
  const std::vector<EncodedQuestion> questions = some_questions(12);
  const TrainingExamples examples = examples_of(questions);

  // Two or three candidates of up to 10 tokens; which one is right follows no rule.
  static std::vector<EncodedQuestion> some_questions(int64_t count) {
    std::vector<EncodedQuestion> all;
    Random random(5);
    for (int64_t i = 0; i < count; ++i) {
      EncodedQuestion& question = all.emplace_back();
      for (int64_t c = 0; c < 2 + i % 2; ++c) {
        Candidate& candidate = question.candidates.emplace_back();
        const auto tokens = static_cast<int64_t>(4 + random.below(7));
        for (int64_t t = 0; t < tokens; ++t)
          candidate.ids.push_back(static_cast<int64_t>(random.below(500)));
        candidate.scored_from = 2;
      }
      question.gold = static_cast<int64_t>(random.below(question.candidates.size()));
    }
    return all;
  }

  Transformer linear_model(const Device& device = {}) const {
    const ModelConfig& config = checkpoint.config();
    const DimensionPlan plan = fixed_plan(identity_of(config), 8, config.kv_heads);
    return make_linear_model(checkpoint, init_features(plan, {.map = FeatureMap::kUntied}), device,
                             DType::kF32);
  }

  static FinetuneOptions settings() {
    FinetuneOptions options;
    options.epochs = 2;
    options.batch = 5;
    options.learning_rate = 1e-3;
    options.weight_decay = 0.1;
    options.warmup = 0.2;
    options.part_tokens = 60;
    return options;
  }

  Judge judge() const {
    return [this](const Transformer& model) {
      const TaskResult answers = evaluate_task(model, questions);
      return Judgement{.score = answers.acc.mean, .answers = answers};
    };
  }

  // Everything that is trained, on the CPU.
  static NamedTensors copy_of(const Transformer& model) {
    NamedTensors copy = parameters(model, kEverything);
    for (auto& [name, tensor] : copy)
      tensor = tensor.device().is_cuda() ? tensor.to(Device()) : tensor.clone();
    return copy;
  }

  static bool same_bits(const NamedTensors& a, const NamedTensors& b) {
    for (size_t i = 0; i < a.size(); ++i)
      if (!test::same_bits(a[i].second, b[i].second)) return false;
    return !a.empty() && a.size() == b.size();
  }
};

}  // namespace dofla::test
