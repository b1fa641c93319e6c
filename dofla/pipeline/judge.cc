#include "dofla/pipeline/judge.h"

#include "dofla/distill/attention_entropy.h"
#include "dofla/distributed/agreement.h"
#include "dofla/fidelity/compare.h"
#include "dofla/sensitivity/added_loss.h"

namespace dofla {
namespace {

// What every layer of the student adds to the loss by itself.
std::vector<double> realised_loss(Transformer& teacher, const DistillText& text,
                                  const Distilled& result, const Progress& progress,
                                  const Group& group) {
  std::vector<double> added(result.features.layers.size(), 0);
  const Share own = group.share(std::ssize(text.held_out));
  const Progress pace = at_own_pace(group, progress);
  for (int64_t i = own.begin; i < own.end; ++i) {
    const std::vector<double> one =
        loss_added_by_layers(teacher, {result.features},
                             to_tensor(text.held_out[static_cast<size_t>(i)]))
            .front();
    for (size_t layer = 0; layer < added.size(); ++layer)
      added[layer] += one[layer] / static_cast<double>(text.held_out.size());
    report(pace, {"loss added by layers", i + 1 - own.begin, std::ssize(text.held_out), "windows"});
  }
  group.sum(added);
  return added;
}

// What the training losses cannot fall below.
std::vector<double> training_floor(const Transformer& teacher, const DistillText& text,
                                   const DistillOptions& options, const Distilled& result) {
  constexpr int64_t kWindows = 8;
  if (result.history.loss.empty()) return {};
  if (const auto* direct = std::get_if<DirectLoss>(&options.recipe.loss))
    return direct->imitate ? std::vector<double>() : std::vector{result.comparison.teacher_loss};
  const auto* of_pairs = std::get_if<FeatureLossOptions>(&options.recipe.loss);
  if (of_pairs == nullptr || of_pairs->kind != FeatureLossKind::kSoftmax) return {};
  if (!result.features.exact.empty()) return {};  // the loss is of what exact keys leave
  std::vector<double> floor =
      attention_entropy(teacher, first_windows(text.train, kWindows), of_pairs->mask);
  for (size_t i = 0; i < floor.size(); ++i)
    if (result.features.layers[i].empty()) floor[i] = 0;  // as the loss of such a layer is
  return floor;
}

}  // namespace

void judge(const Transformer& original, Transformer& teacher, Transformer& student,
           const DistillText& text, const DistillOptions& options, const Progress& progress,
           Distilled& result) {
  const int64_t tokens = static_cast<int64_t>(text.held_out.size()) * (text.held_out.length() - 1);
  const Compared compared =
      compare(original, {&student}, each_of(text.held_out), tokens, progress, options.group)
          .front();
  result.comparison = divergence_of(compared.windows);
  result.attention_error = layer_errors(compared);
  result.controls = evaluate_controls(student, teacher, result.features, each_of(text.held_out),
                                      tokens, progress, options.group);
  result.floor = training_floor(original, text, options, result);
  if (result.sensitivity)
    result.added = realised_loss(teacher, text, result, progress, options.group);
}

}  // namespace dofla
