#include "dofla/ops/cpu/feature_loss_factors.h"

#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

// Brings the largest log feature of row t to 0.
void peak_to_zero(int64_t t, int64_t count, Side& side) {
  float* logs = side.logs.data() + t * count;
  const float top = row_max(logs, count);
  add_constant(-top, count, logs);
  side.peak[static_cast<size_t>(t)] += top;
}

void fill_logs(const SideFeatures& features, const float* x, int64_t tokens, Side& side) {
  side.peak.resize(static_cast<size_t>(tokens));
  side.logs.resize(static_cast<size_t>(tokens * features.count));
  log_features_without_norm(features, x, tokens, side.logs.data());
  half_norms(features, x, tokens, side.peak.data());
  scale_row(-1, tokens, side.peak.data());
  for (int64_t t = 0; t < tokens; ++t) peak_to_zero(t, features.count, side);
}

// logs += sign · balance, then factors.
void fill_factors(const std::vector<float>& balance, float sign, int64_t tokens, Side& side) {
  const auto count = static_cast<int64_t>(balance.size());
  side.factor.resize(side.logs.size());
  for (int64_t t = 0; t < tokens; ++t) {
    float* logs = side.logs.data() + t * count;
    add_scaled(balance.data(), sign, count, logs);
    peak_to_zero(t, count, side);
    exp_shifted(logs, kLift, count, side.factor.data() + t * count);
  }
}

}  // namespace

void fill_sides(const HeadFeatures& features, const float* q, const float* k, int64_t tokens,
                Side& query, Side& key) {
  const int64_t count = features.key.count;
  fill_logs(features.query, q, tokens, query);
  fill_logs(features.key, k, tokens, key);
  std::vector<float> balance(static_cast<size_t>(count));
  for (int64_t t = 0; t < tokens; ++t) {
    const auto rows = static_cast<float>(tokens);
    add_scaled(query.logs.data() + t * count, -0.75f / rows, count, balance.data());
    add_scaled(key.logs.data() + t * count, 0.25f / rows, count, balance.data());
  }
  fill_factors(balance, 1, tokens, query);
  fill_factors(balance, -1, tokens, key);
}

}  // namespace dofla::cpu
