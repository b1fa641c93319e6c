#include "dofla/sensitivity/recall_order.h"

#include <algorithm>
#include <cmath>

#include "dofla/checkpoint/config_fields.h"
#include "dofla/core/error.h"
#include "dofla/core/saved_json.h"
#include "dofla/sensitivity/loss_curve.h"

namespace dofla {
namespace {

double number(const Json& json, const char* field, const std::string& where) {
  const Json value = json.value(field, Json());
  if (!value.is_number() || !std::isfinite(value.get<double>()))
    fail("{}: {}: expected a number, found {}", where, field, excerpt(value));
  return value.get<double>();
}

}  // namespace

std::vector<std::vector<double>> RecallOrder::added_a_token(int64_t layers, int64_t key_heads,
                                                            int64_t length) const {
  std::vector<double> saved;
  for (const Step& step : steps) saved.push_back(step.saved);
  saved = without_growth(saved);
  std::vector<std::vector<double>> added(static_cast<size_t>(layers),
                                         std::vector<double>(static_cast<size_t>(key_heads), 0));
  for (size_t i = 0; i < steps.size(); ++i)
    added[static_cast<size_t>(steps[i].layer)][static_cast<size_t>(steps[i].head)] =
        std::max(saved[i], 0.0) / static_cast<double>(length - steps[i].keys);
  return added;
}

Json to_json(const RecallOrder& recall) {
  Json order = Json::array();
  for (const RecallOrder::Step& step : recall.steps)
    order.push_back({{"layer", step.layer + 1},
                     {"head", step.head + 1},
                     {"keys", step.keys},
                     {"saved", step.saved}});
  return {{"windows", recall.windows}, {"lost", recall.lost}, {"order", std::move(order)}};
}

RecallOrder read_recall(const Json& json, int64_t layers, int64_t key_heads, int64_t length,
                        const std::string& where) {
  RecallOrder recall;
  const ConfigFields fields(json, where);
  recall.windows = fields.size("windows");
  recall.lost = number(json, "lost", where);
  std::vector<bool> seen(static_cast<size_t>(layers * key_heads), false);
  for (const Json& step : array_field(json, "order", layers * key_heads, where)) {
    const std::string place = fmt::format("{}: order {}", where, recall.steps.size() + 1);
    const ConfigFields of_step(step, place);
    const int64_t layer = of_step.size("layer"), head = of_step.size("head");
    if (layer > layers || head > key_heads)
      fail("{}: layer {}, head {}: there are {} layers of {}", place, layer, head, layers,
           key_heads);
    const auto at = static_cast<size_t>((layer - 1) * key_heads + head - 1);
    if (seen[at]) fail("{}: layer {}, head {} for the second time", place, layer, head);
    seen[at] = true;
    const int64_t keys = of_step.size("keys");
    if (keys >= length) fail("{}: keys: expected fewer than {}, found {}", place, length, keys);
    recall.steps.push_back({layer - 1, head - 1, keys, number(step, "saved", place)});
  }
  return recall;
}

}  // namespace dofla
