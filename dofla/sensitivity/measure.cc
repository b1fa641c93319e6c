#include "dofla/sensitivity/measure.h"

#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/distill/calibrate.h"
#include "dofla/distill/pair_init.h"
#include "dofla/distributed/agreement.h"
#include "dofla/dof/measure.h"
#include "dofla/plan/allocate.h"
#include "dofla/sensitivity/added_loss.h"
#include "dofla/sensitivity/measure_recall.h"
#include "dofla/sensitivity/memory.h"
#include "dofla/sensitivity/recall_windows.h"
#include "dofla/sensitivity/side_by_side.h"

namespace dofla {
namespace {

constexpr int64_t kWindows = 4;
constexpr int64_t kRecallWindows = 2;

void require_ladder(const std::vector<int64_t>& ladder) {
  require(ladder.size() >= 2, "ladder: expected at least two numbers of features, found {}",
          ladder.size());
  for (size_t i = 0; i < ladder.size(); ++i)
    require(ladder[i] >= 1 && ladder[i] <= DimensionPlan::kLargestDimension &&
                (i == 0 || ladder[i] > ladder[i - 1]),
            "ladder: expected whole numbers from 1 to {} that grow, found {}",
            DimensionPlan::kLargestDimension, ladder[i]);
}

// The exact keys that features are measured beside, and those of caches without features.
void choose_keys(const SensitivityOptions& options, int64_t key_heads, SensitivityTable& table) {
  table.exact = options.exact;
  table.key_ladder = options.key_ladder;
  if (options.memory) {
    table.key_heads = key_heads;
    const int64_t least = least_keys(options.exact);
    if (least > most_keys(table))
      fail(
          "windows of {} tokens leave nothing to features beside the fewest exact keys, {}: give "
          "longer windows, or fewer sinks, recent keys and keys that leave together",
          table.length, least);
    const int64_t keys = keys_that_fit(table, *options.memory, kFeaturesBesideExactKeys);
    if (table.exact.empty())
      table.exact.keys = std::clamp(keys, least, std::max(least, table.length / 2));
    if (table.key_ladder.empty())
      table.key_ladder = key_ladder_around(keys, table.exact, table.length);
  }
  if (table.exact.empty() && table.key_ladder.empty()) return;
  table.key_heads = key_heads;
  require_valid(table.exact);
  for (size_t i = 0; i < table.key_ladder.size(); ++i)
    require(table.key_ladder[i] >= least_keys(table.exact) && table.key_ladder[i] < table.length &&
                (i == 0 || table.key_ladder[i] > table.key_ladder[i - 1]),
            "key ladder: expected whole numbers from {} to {} that grow, found {}",
            least_keys(table.exact), table.length - 1, table.key_ladder[i]);
}

// Features of every M of the ladder at pairs that attend to each other, as distill draws them; the
// teacher runs once for all.
std::vector<FeatureSet> draw_features(const Transformer& teacher, const WindowSet& text,
                                      const SensitivityTable& table, FeatureMap map,
                                      const Progress& progress, const Group& group) {
  const int64_t sequences = std::min(kDofSequences, static_cast<int64_t>(text.size()));
  std::vector<PairSampler> samplers;
  for (const int64_t M : table.ladder) {
    DimensionPlan plan = fixed_plan(table.model, M, table.feature_heads);
    if (!table.exact.empty())
      plan.exact.assign(static_cast<size_t>(table.model.layers), table.exact);
    samplers.emplace_back(plan, sequences, table.seed);
  }
  ForwardOptions forward;
  forward.heads_only = true;
  forward.observer = [&](int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v) {
    const PairsToLearn pairs = pairs_to_learn(q, k, v, table.exact);
    for (PairSampler& sampler : samplers) sampler.offer(layer, pairs);
  };
  for (int64_t i = 0; i < sequences; ++i) {
    teacher.forward(to_tensor(text[static_cast<size_t>(i)]), forward);
    report(group, progress, {"first features", i + 1, sequences, "sequences"});
  }
  std::vector<FeatureSet> sets;
  sets.reserve(samplers.size());
  for (const PairSampler& sampler : samplers)
    sets.push_back(sampler.features(map).to(teacher.device()));
  return sets;
}

Json to_json(const Recipe& recipe) {
  return {{"features", name(recipe.features)},
          {"init", name(recipe.init)},
          {"loss", name(kind_of(recipe.loss))},
          {"lr_z", recipe.train.lr_z},
          {"lr_alpha", recipe.train.lr_alpha}};
}

std::vector<FeatureSet> train_ladder(const Transformer& teacher, const WindowSet& text,
                                     const Recipe& recipe, const SensitivityTable& table,
                                     const Progress& progress, const Group& group) {
  std::vector<FeatureSet> sets =
      draw_features(teacher, text, table, recipe.features, progress, group);
  if (table.steps == 0) return sets;
  SideBySide students(teacher, std::move(sets), layerwise(recipe.loss), recipe.train, group);
  ShuffledBatches batches(text, table.batch, table.seed);
  for (int64_t step = 0; step < table.steps; ++step) {
    students.step(batches.at(step));
    report(group, progress, {"train the ladder", step + 1, table.steps, "steps"});
  }
  std::vector<FeatureSet> trained;
  for (size_t i = 0; i < students.size(); ++i) trained.push_back(students.trainer(i).features());
  if (!table.exact.empty())
    calibrate(teacher, windows_after(text, table.steps * table.batch, kWindows, table.seed),
              trained, progress, group);
  return trained;
}

// The curves of heads from their shares of those of the layers.
std::vector<std::vector<SensitivityTable::Curve>> times(
    std::vector<std::vector<SensitivityTable::Curve>> shares,
    const std::vector<SensitivityTable::Curve>& layers) {
  for (size_t s = 0; s < shares.size(); ++s)
    for (SensitivityTable::Curve& head : shares[s])
      for (size_t i = 0; i < head.size(); ++i) head[i] *= layers[s][i];
  return shares;
}

// [sets, layers] as a curve a layer.
std::vector<SensitivityTable::Curve> turned(const std::vector<std::vector<double>>& sets) {
  std::vector<SensitivityTable::Curve> layers(sets.front().size());
  for (const std::vector<double>& set : sets)
    for (size_t layer = 0; layer < layers.size(); ++layer) layers[layer].push_back(set[layer]);
  return layers;
}

// What every layer and key head adds with caches of exact keys and without features.
void measure_keys(Transformer& teacher, const Tensor& ids, const Progress& progress,
                  const Group& group, SensitivityTable& table) {
  if (table.key_ladder.empty()) return;
  std::vector<FeatureSet> caches;
  for (const int64_t keys : table.key_ladder)
    caches.push_back(exact_keys_alone(table.model.layers, table.exact.with_keys(keys)));
  table.keys = turned(
      loss_added_by_layers(teacher, caches, ids, {"loss added without features"}, progress, group));
  table.key_shares = times(head_shares(teacher, caches, ids, progress, group), table.keys);
}

// The windows after those that the loss is measured on, or of a short text the first ones again,
// with repeats at their end.
Tensor windows_of_recall(const WindowSet& text, const SensitivityTable& table, int64_t count) {
  std::vector<TokenIds> windows;
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(table.windows + i) % text.size();
    windows.push_back(recall_window(text[at], static_cast<uint64_t>(i)));
  }
  return to_batch(windows);
}

}  // namespace

std::vector<int64_t> key_ladder_around(int64_t keys, const ExactKeys& kind, int64_t length) {
  std::vector<int64_t> ladder;
  for (const int64_t K : {keys / 4, keys / 2, keys, 2 * keys, 4 * keys})
    if (const int64_t rung =
            std::clamp(K, least_keys(kind), std::min(length - 1, kMostPlannedKeys));
        ladder.empty() || rung > ladder.back())
      ladder.push_back(rung);
  return ladder;
}

std::vector<int64_t> ladder_around(int64_t cost) {
  std::vector<int64_t> ladder;
  for (const int64_t M : {cost / 16, cost / 4, cost, 4 * cost})
    if (const int64_t rung = std::clamp<int64_t>(M, 1, DimensionPlan::kLargestDimension);
        ladder.empty() || rung > ladder.back())
      ladder.push_back(rung);
  return ladder;
}

SensitivityTable measure_sensitivity(const Checkpoint& checkpoint, const WindowSet& text,
                                     const SensitivityOptions& options, const Device& device,
                                     const Progress& progress, const Group& group) {
  const ModelConfig& config = checkpoint.config();
  const auto available = static_cast<int64_t>(text.size());
  const int64_t cost =
      options.cost.value_or(options.memory ? kFeaturesBesideExactKeys : config.head_size);
  SensitivityTable table;
  table.model = identity_of(config);
  table.feature_heads = feature_heads(options.features, config.heads, config.kv_heads);
  table.ladder = options.ladder.empty() ? ladder_around(cost) : options.ladder;
  table.steps = options.steps;
  table.batch = options.batch;
  const Recipe recipe = make_recipe({.features = options.features,
                                     .exact_keys = options.memory || !options.exact.empty(),
                                     .steps = options.steps});
  table.recipe = to_json(recipe);
  table.windows = options.windows.value_or(std::min(kWindows, available));
  const int64_t recall_windows =
      options.recall_windows.value_or(options.memory ? kRecallWindows : 0);
  table.seed = options.seed;
  require_ladder(table.ladder);
  require(available > 0 && table.steps >= 0 && table.batch >= 1 && table.windows >= 1,
          "measure_sensitivity: {} windows of text, {} steps of {}, measured on {}", available,
          table.steps, table.batch, table.windows);
  require(recall_windows == 0 || options.memory,
          "windows that ask for recall have no effect without a memory to spend");
  if (table.windows > available)
    fail(
        "the loss is to be measured on {} windows, but the training text has {}: give more text, "
        "or ask for fewer windows",
        table.windows, available);
  table.length = text.length();
  choose_keys(options, config.kv_heads, table);
  table.text = fingerprint_of(text);
  require_same(group, "text", table.text);
  require_same_weights(group, checkpoint);

  Transformer teacher(checkpoint, device);
  const Tensor ids = to_batch(text.slice(0, static_cast<size_t>(table.windows)).all());
  table.teacher_loss = mean_loss(teacher, ids, group);
  measure_keys(teacher, ids, progress, group, table);
  const std::vector<FeatureSet> sets = train_ladder(teacher, text, recipe, table, progress, group);
  table.layers = turned(loss_added_by_layers(teacher, sets, ids, {}, progress, group));
  table.heads = times(head_shares(teacher, sets, ids, progress, group), table.layers);
  if (recall_windows > 0)
    table.recall =
        measure_recall(teacher, windows_of_recall(text, table, recall_windows),
                       allocate_memory(table, {.memory = options.memory}).exact, progress, group);
  return table;
}

SensitivityTable measure_sensitivity(const Checkpoint& checkpoint, Coordinates coordinates,
                                     const WindowSet& text, const SensitivityOptions& options,
                                     const Device& device, const Progress& progress,
                                     const Group& group) {
  const size_t count = std::min(static_cast<size_t>(kDofSequences), text.size());
  const CoordinateSet chosen = measure_coordinates(
      Transformer(checkpoint, device), text.slice(0, count).all(), coordinates, progress, group);
  SensitivityTable table = measure_sensitivity(in_coordinates(checkpoint, chosen), text, options,
                                               device, progress, group);
  table.coordinates = coordinates;
  return table;
}

}  // namespace dofla
