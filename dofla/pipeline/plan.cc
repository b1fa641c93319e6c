#include "dofla/pipeline/plan.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "dofla/core/error.h"
#include "dofla/sensitivity/allocate.h"
#include "dofla/sensitivity/memory.h"

namespace dofla {
namespace {

int64_t feature_heads(const ModelConfig& config, FeatureMap map) {
  return dofla::feature_heads(map, config.heads, config.kv_heads);
}

// M = C in every head, without measuring anything.
DimensionPlan fixed_plan_for(const ModelConfig& config, const AllocateOptions& options,
                             FeatureMap map) {
  DimensionPlan plan = fixed_plan(identity_of(config), options.cost.value_or(config.head_size),
                                  feature_heads(config, map));
  plan.least = options.least;
  require_affordable(plan.cost, plan.least);
  return plan;
}

// The layers, in order, with the largest values; of equal ones the first.
std::vector<int64_t> largest(const std::vector<double>& values, int64_t count) {
  std::vector<int64_t> layers(values.size());
  std::iota(layers.begin(), layers.end(), int64_t{0});
  std::ranges::stable_sort(layers, std::greater(),
                           [&](int64_t layer) { return values[static_cast<size_t>(layer)]; });
  layers.resize(static_cast<size_t>(count));
  std::ranges::sort(layers);
  return layers;
}

// Before anything is measured.
void require_layers_to_keep(const DistillOptions& options, int64_t layers) {
  if (options.keep_count > layers)
    fail("{} layers are to keep their softmax attention, but the model has {} layers",
         options.keep_count, layers);
  for (const int64_t layer : options.keep)
    if (layer < 0 || layer >= layers)
      fail("layer {} is to keep its softmax attention, but the model has {} layers", layer + 1,
           layers);
}

// The layers that keep their softmax attention, in order, each once. `weights`, one a layer, are
// what they are chosen by if only their number is given.
std::vector<int64_t> kept_layers(const DistillOptions& options,
                                 const std::vector<double>& weights) {
  if (options.keep_count > 0) return largest(weights, options.keep_count);
  std::vector<int64_t> keep = options.keep;
  std::ranges::sort(keep);
  keep.erase(std::unique(keep.begin(), keep.end()), keep.end());
  return keep;
}

// `rows` belong to every layer.
template <class Row>
void erase_layer(std::vector<Row>& table, int64_t layer, int64_t rows = 1) {
  if (table.empty()) return;
  const auto begin = table.begin() + layer * rows;
  table.erase(begin, begin + rows);
}

SensitivityTable without_layers(SensitivityTable table, const std::vector<int64_t>& layers) {
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    erase_layer(table.layers, *layer);
    erase_layer(table.heads, *layer);
    erase_layer(table.keys, *layer);
    erase_layer(table.key_shares, *layer);
    std::erase_if(table.recall.steps,
                  [&](const RecallOrder::Step& step) { return step.layer == *layer; });
    for (RecallOrder::Step& step : table.recall.steps) step.layer -= step.layer > *layer ? 1 : 0;
    --table.model.layers;
  }
  return table;
}

DofTable without_layers(DofTable table, const std::vector<int64_t>& layers) {
  const int64_t rows = table.heads_in_layer() * table.draws;
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    erase_layer(table.spectra, *layer, rows);
    erase_layer(table.values, *layer, rows);
    --table.model.layers;
  }
  return table;
}

// The plan of a table that spends nothing on the layers that are kept.
template <class Table>
DimensionPlan allocate_others(const Table& table, const AllocateOptions& options,
                              const std::vector<int64_t>& keep) {
  if (static_cast<int64_t>(keep.size()) == table.model.layers)
    fail("no layer is left to learn features: keep fewer layers");
  DimensionPlan plan = allocate(without_layers(table, keep), options);
  plan.model = table.model;
  for (const int64_t layer : keep) {
    plan.heads.emplace(plan.heads.begin() + layer);
    if (!plan.exact.empty()) plan.exact.emplace(plan.exact.begin() + layer);
  }
  return plan;
}

void plan_by_sensitivity(const Checkpoint& checkpoint, const DistillText& text,
                         const DistillOptions& options, const Progress& progress,
                         Distilled& result) {
  const AllocateOptions& made = *options.allocation();
  SensitivityOptions measure = {.features = options.recipe.features,
                                .cost = made.cost,
                                .seed = options.seed,
                                .exact = options.exact.value_or(ExactKeys{}),
                                .memory = made.memory};
  if (made.recall_share == 0) measure.recall_windows = 0;
  result.sensitivity =
      measure_sensitivity(checkpoint, text.train, measure, options.device, progress, options.group);
  const SensitivityTable& table = *result.sensitivity;
  result.sensitivity->coordinates = options.coordinates_kind();
  // With as many features in all heads, beside the exact keys of the table.
  const int64_t features =
      made.memory ? kFeaturesBesideExactKeys : made.cost.value_or(table.model.head_size);
  const std::vector<double> added =
      predicted_loss(table, fixed_plan(table.model, features, table.feature_heads));
  result.plan = allocate_others(table, made, kept_layers(options, added));
}

void plan_by_dof(const Transformer& teacher, const DistillText& text, const DistillOptions& options,
                 const Progress& progress, Distilled& result) {
  DofOptions dof = options.dof.value_or(DofOptions());
  dof.features = options.recipe.features;
  result.dof = measure_dof(teacher, first_windows(text.train, options.sequences), dof, options.seed,
                           progress, options.group);
  result.dof->coordinates = options.coordinates_kind();
  std::vector<double> largest_of_layer;
  for (const DofRow& row : degrees_of_freedom(*result.dof, result.dof->lambda))
    largest_of_layer.push_back(row.largest().mean);
  result.plan =
      allocate_others(*result.dof, *options.allocation(), kept_layers(options, largest_of_layer));
}

// A plan for which nothing is measured.
DimensionPlan plan_at_hand(const ModelConfig& config, const DistillOptions& options) {
  DimensionPlan plan;
  if (const AllocateOptions* made = options.allocation())
    plan = fixed_plan_for(config, *made, options.recipe.features);
  else if (const auto* given = std::get_if<DimensionPlan>(&options.plan))
    plan = *given;
  else
    plan = std::get<StudentFeatures>(options.plan).plan;
  require_fits(plan, config, options.recipe.features);
  for (const int64_t layer : kept_layers(options, std::vector<double>(plan.heads.size(), 0))) {
    plan.heads[static_cast<size_t>(layer)].clear();
    if (!plan.exact.empty()) plan.exact[static_cast<size_t>(layer)] = {};
  }
  return plan;
}

}  // namespace

void make_plan(const Checkpoint& checkpoint, const Transformer& teacher, const DistillText& text,
               const DistillOptions& options, const Progress& progress, Distilled& result) {
  const ModelConfig& config = teacher.config();
  require_layers_to_keep(options, config.layers);
  if (options.measures_sensitivity())
    plan_by_sensitivity(checkpoint, text, options, progress, result);
  else if (options.measures_dof())
    plan_by_dof(teacher, text, options, progress, result);
  else
    result.plan = plan_at_hand(config, options);
  DimensionPlan& plan = result.plan;
  if (std::ranges::all_of(plan.heads, [](const auto& heads) { return heads.empty(); }))
    fail("no layer is left to learn features: keep fewer layers");
  if (!options.exact || options.exact->empty()) return;
  plan.key_heads = config.kv_heads;
  for (const auto& heads : plan.heads)  // a layer without features keeps its softmax attention
    plan.exact.push_back(heads.empty() ? ExactKeys{} : *options.exact);
}

DistillOptions without_measuring(const ModelConfig& config, const DistillOptions& options) {
  const AllocateOptions* made = options.allocation();
  if (made == nullptr) return options;
  DistillOptions fixed = options;
  AllocateOptions allocate = {
      .strategy = PlanStrategy::kFix, .cost = made->cost, .least = made->least};
  if (made->memory) {
    allocate.cost = std::max(kFeaturesBesideExactKeys, made->least);
    SensitivityTable shape;  // as far as the memory of a layer depends on it
    shape.model = identity_of(config);
    shape.feature_heads = feature_heads(config, options.recipe.features);
    shape.key_heads = config.kv_heads;
    shape.exact = options.exact.value_or(ExactKeys{});
    fixed.exact = shape.exact;
    fixed.exact->keys = keys_that_fit(shape, *made->memory, *allocate.cost);
  }
  fixed.plan = allocate;
  for (int64_t layer = 0; layer < options.keep_count; ++layer) fixed.keep.push_back(layer);
  fixed.keep_count = 0;
  return fixed;
}

}  // namespace dofla
