#include "dofla/sensitivity/memory.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/bytes.h"
#include "dofla/core/error.h"
#include "dofla/ops/linear_attention.h"
#include "dofla/sensitivity/hybrid_loss.h"

namespace dofla {
namespace {

struct Layer {
  HybridLoss loss;
  int64_t keys, features;

  int64_t bytes(const UnitBytes& unit) const { return keys * unit.key + features * unit.feature; }
};

// What more a layer could get.
struct Offer {
  Layer* layer = nullptr;
  int64_t keys = 0, features = 0;
  int64_t bytes = 0;
  double gain = 0;  // the loss that a byte of it saves
};

Offer make_offer(Layer& layer, int64_t keys, int64_t features, const UnitBytes& unit) {
  const int64_t bytes = keys * unit.key + features * unit.feature;
  const double saved = layer.loss.at(layer.keys, layer.features) -
                       layer.loss.at(layer.keys + keys, layer.features + features);
  return {&layer, keys, features, bytes, saved / static_cast<double>(bytes)};
}

// The best that `left` bytes can buy; without a layer if there is nothing more to buy. Of equal
// gains the layer that has least comes first, so that keys without a gain are shared evenly;
// features without one are not bought.
Offer best_offer(std::vector<Layer>& layers, int64_t left, const SensitivityTable& table) {
  const UnitBytes unit = unit_bytes(table);
  Offer best;
  const auto consider = [&](const Offer& offer) {
    if (offer.bytes > left) return;
    if (best.layer == nullptr || offer.gain > best.gain ||
        (offer.gain == best.gain && offer.layer->bytes(unit) < best.layer->bytes(unit)))
      best = offer;
  };
  for (Layer& layer : layers) {
    if (const int64_t keys = std::min(table.exact.block, most_keys(table) - layer.keys); keys > 0)
      consider(make_offer(layer, keys, 0, unit));
    if (layer.features == DimensionPlan::kLargestDimension) continue;
    if (const Offer feature = make_offer(layer, 0, 1, unit); feature.gain > 0) consider(feature);
  }
  return best;
}

// What all layers take at least.
int64_t require_enough(const SensitivityTable& table, int64_t memory, int64_t features) {
  const UnitBytes unit = unit_bytes(table);
  const int64_t keys = least_keys(table.exact);
  const int64_t least = table.model.layers * (keys * unit.key + features * unit.feature);
  if (memory < least)
    fail(
        "a memory of {} a sequence is too little: {} ({} bytes) are needed at least, for {} exact "
        "keys and {} a head in every layer",
        with_bytes_unit(memory), with_bytes_unit(least), least, keys,
        features == 1 ? "1 feature" : fmt::format("{} features", features));
  return least;
}

}  // namespace

UnitBytes unit_bytes(const SensitivityTable& table) {
  return {.key = table.key_heads * exact_key_bytes(1, table.model.head_size),
          .feature = table.heads_in_layer() * linear_state_bytes(1, table.model.head_size)};
}

int64_t most_keys(const SensitivityTable& table) {
  return table.length - table.exact.block;
}

int64_t keys_that_fit(const SensitivityTable& table, int64_t memory, int64_t features) {
  require_enough(table, memory, 1);
  const UnitBytes unit = unit_bytes(table);
  const int64_t keys = (memory / table.model.layers - features * unit.feature) / unit.key;
  return std::max(keys, least_keys(table.exact));
}

DimensionPlan allocate_memory(const SensitivityTable& table, int64_t memory, int64_t least) {
  if (table.key_ladder.empty())
    fail(
        "the sensitivity says nothing of exact keys, and cannot plan a memory: measure it with "
        "dofla sensitivity --memory");
  require(least >= 1 && least <= DimensionPlan::kLargestDimension,
          "least: expected from 1 to {}, found {}", DimensionPlan::kLargestDimension, least);
  int64_t left = memory - require_enough(table, memory, least);
  std::vector<Layer> layers;
  for (size_t s = 0; s < table.layers.size(); ++s)
    layers.push_back({HybridLoss(table, s), least_keys(table.exact), least});
  while (true) {
    const Offer offer = best_offer(layers, left, table);
    if (offer.layer == nullptr) break;
    offer.layer->keys += offer.keys;
    offer.layer->features += offer.features;
    left -= offer.bytes;
  }

  DimensionPlan plan = fixed_plan(table.model, 1, table.feature_heads);
  plan.strategy = PlanStrategy::kSensitivity;
  plan.least = least;
  plan.key_heads = table.key_heads;
  for (size_t s = 0; s < layers.size(); ++s) {
    std::ranges::fill(plan.heads[s], layers[s].features);
    plan.exact.push_back(table.exact);
    plan.exact.back().keys = layers[s].keys;
  }
  plan.cost = std::llround(plan.mean());
  return plan;
}

}  // namespace dofla
