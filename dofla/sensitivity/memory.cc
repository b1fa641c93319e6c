#include "dofla/sensitivity/memory.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "dofla/core/bytes.h"
#include "dofla/core/error.h"
#include "dofla/ops/linear_attention.h"
#include "dofla/sensitivity/hybrid_loss.h"

namespace dofla {
namespace {

// A layer, or one of its key heads.
struct Unit {
  HybridLoss loss;        // of ordinary text
  double recall_a_token;  // of text that repeats what stood before, for every token that its
                          // caches lack
  double recall_share;    // how much of the text does
  int64_t length;         // of a window
  UnitBytes each;
  int64_t keys, features;

  int64_t bytes() const { return keys * each.key + features * each.feature; }
  double added(int64_t K, int64_t M) const {
    return (1 - recall_share) * loss.at(K, M) +
           recall_share * recall_a_token * static_cast<double>(length - K);
  }
};

// What more a unit could get.
struct Offer {
  Unit* unit = nullptr;
  int64_t keys = 0, features = 0;
  int64_t bytes = 0;
  double gain = 0;  // the loss that a byte of it saves
};

Offer make_offer(Unit& unit, int64_t keys, int64_t features) {
  const int64_t bytes = keys * unit.each.key + features * unit.each.feature;
  const double saved =
      unit.added(unit.keys, unit.features) - unit.added(unit.keys + keys, unit.features + features);
  return {&unit, keys, features, bytes, saved / static_cast<double>(bytes)};
}

// The next step of a unit that has so many keys.
int64_t more_keys(const SensitivityTable& table, int64_t keys, PlanUnit by) {
  const int64_t block = table.exact.block, quarter = (keys / 4 + block - 1) / block * block;
  const int64_t room = (most_keys(table) - keys) / block * block;
  return std::min(by == PlanUnit::kHead ? std::max(quarter, block) : block, room);
}

// The best that `left` bytes can buy; without a unit if there is nothing more to buy. Of equal
// gains the unit that has least comes first, so that keys without a gain are shared evenly;
// features without one are not bought.
Offer best_offer(std::vector<Unit>& units, int64_t left, const SensitivityTable& table,
                 PlanUnit by) {
  Offer best;
  const auto consider = [&](const Offer& offer) {
    if (offer.bytes > left) return;
    if (best.unit == nullptr || offer.gain > best.gain ||
        (offer.gain == best.gain && offer.unit->bytes() < best.unit->bytes()))
      best = offer;
  };
  for (Unit& unit : units) {
    if (const int64_t keys = more_keys(table, unit.keys, by); keys > 0)
      consider(make_offer(unit, keys, 0));
    if (unit.features == DimensionPlan::kLargestDimension) continue;
    if (const Offer feature = make_offer(unit, 0, 1); feature.gain > 0) consider(feature);
  }
  return best;
}

// The keys that every unit begins with: a quarter of an equal share. A few windows do not tell of
// all that a head has to keep, and a head without what it needs once ruins all that follows.
int64_t first_keys(const SensitivityTable& table, int64_t memory, int64_t features) {
  const int64_t least = least_keys(table.exact), block = table.exact.block;
  const int64_t quarter = keys_that_fit(table, memory, features) / 4;
  const int64_t most = (most_keys(table) - least) / block;
  return least +
         std::clamp((quarter - least) / block, int64_t{0}, std::max(most, int64_t{0})) * block;
}

// All layers, or the key heads of all layers one after another.
std::vector<Unit> units_of(const SensitivityTable& table, int64_t keys, int64_t least, PlanUnit by,
                           double recall) {
  const UnitBytes layer = unit_bytes(table);
  const UnitBytes head = {layer.key / table.key_heads, layer.feature / table.key_heads};
  const std::vector<std::vector<double>> added =
      table.recall.added_a_token(table.model.layers, table.key_heads, table.length);
  std::vector<Unit> units;
  for (size_t s = 0; s < table.layers.size(); ++s) {
    if (by == PlanUnit::kLayer)
      units.push_back({HybridLoss(table, s), std::accumulate(added[s].begin(), added[s].end(), 0.0),
                       recall, table.length, layer, keys, least});
    else
      for (size_t h = 0; h < table.key_shares[s].size(); ++h)
        units.push_back(
            {HybridLoss(table, s, h), added[s][h], recall, table.length, head, keys, least});
  }
  return units;
}

// Writes what the units of layer s have into the plan.
void write_layer(std::span<const Unit> units, size_t s, DimensionPlan& plan, ExactKeys exact) {
  const size_t heads = plan.heads[s].size();
  for (size_t h = 0; h < heads; ++h) plan.heads[s][h] = units[h * units.size() / heads].features;
  exact.keys = 0;
  for (const Unit& unit : units) {
    exact.head_keys.push_back(unit.keys);
    exact.keys = std::max(exact.keys, unit.keys);
  }
  if (std::ranges::count(exact.head_keys, exact.keys) == std::ssize(exact.head_keys))
    exact.head_keys.clear();
  plan.exact.push_back(exact);
}

// What all layers take at least.
void require_enough(const SensitivityTable& table, int64_t memory, int64_t features) {
  const UnitBytes unit = unit_bytes(table);
  const int64_t keys = least_keys(table.exact);
  const int64_t least = table.model.layers * (keys * unit.key + features * unit.feature);
  if (memory < least)
    fail(
        "a memory of {} a sequence is too little: {} ({} bytes) are needed at least, for {} exact "
        "keys and {} a head in every layer",
        with_bytes_unit(memory), with_bytes_unit(least), least, keys,
        features == 1 ? "1 feature" : fmt::format("{} features", features));
}

double share_of_recall(const SensitivityTable& table, const AllocateOptions& options) {
  const double share = options.recall_share.value_or(kRecallShare);
  require(share >= 0 && share <= 1, "share of recall: expected from 0 to 1, found {}", share);
  if (table.recall.windows > 0) return share;
  if (options.recall_share && share > 0)
    fail("the sensitivity says nothing of recall: measure it with windows that ask for it");
  return 0;
}

}  // namespace

UnitBytes unit_bytes(const SensitivityTable& table) {
  return {.key = table.key_heads * exact_key_bytes(1, table.model.head_size),
          .feature = table.heads_in_layer() * linear_state_bytes(1, table.model.head_size)};
}

int64_t most_keys(const SensitivityTable& table) {
  return std::min(table.length - table.exact.block, kMostPlannedKeys);
}

int64_t keys_that_fit(const SensitivityTable& table, int64_t memory, int64_t features) {
  require_enough(table, memory, 1);
  const UnitBytes unit = unit_bytes(table);
  const int64_t keys = (memory / table.model.layers - features * unit.feature) / unit.key;
  return std::max(keys, least_keys(table.exact));
}

DimensionPlan allocate_memory(const SensitivityTable& table, const AllocateOptions& options) {
  const int64_t memory = options.memory.value(), least = options.least;
  const PlanUnit by = options.by.value_or(PlanUnit::kHead);
  const double recall = share_of_recall(table, options);
  if (table.key_ladder.empty())
    fail(
        "the sensitivity says nothing of exact keys, and cannot plan a memory: measure it for one");
  require(least >= 1 && least <= DimensionPlan::kLargestDimension,
          "least: expected from 1 to {}, found {}", DimensionPlan::kLargestDimension, least);
  require_enough(table, memory, least);
  std::vector<Unit> units = units_of(table, first_keys(table, memory, least), least, by, recall);
  int64_t left = memory;
  for (const Unit& unit : units) left -= unit.bytes();
  while (true) {
    const Offer offer = best_offer(units, left, table, by);
    if (offer.unit == nullptr) break;
    offer.unit->keys += offer.keys;
    offer.unit->features += offer.features;
    left -= offer.bytes;
  }

  DimensionPlan plan = fixed_plan(table.model, 1, table.feature_heads);
  plan.strategy = PlanStrategy::kSensitivity;
  plan.by = by;
  plan.least = least;
  plan.key_heads = table.key_heads;
  const size_t in_layer = units.size() / table.layers.size();
  for (size_t s = 0; s < table.layers.size(); ++s)
    write_layer(std::span(units).subspan(s * in_layer, in_layer), s, plan, table.exact);
  plan.cost = std::llround(plan.mean());
  return plan;
}

}  // namespace dofla
