#include "dofla/features/moments.h"

#include <algorithm>
#include <cmath>

#include <cblas.h>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"
#include "dofla/ops/heads.h"

namespace dofla {

QueryKeyMoments::QueryKeyMoments(const ModelConfig& config)
    : key_heads_(config.kv_heads), size_(config.head_size) {
  const auto size = static_cast<size_t>(size_);
  const Sums nothing = {0, std::vector<double>(size), std::vector<double>(size * size)};
  queries_.assign(static_cast<size_t>(config.layers * key_heads_), nothing);
  keys_ = queries_;
}

void QueryKeyMoments::add(const Tensor& x, std::vector<Sums>& to, int64_t layer) {
  const Tensor all = contiguous_heads(x).to(Device()).to(DType::kF32);
  const int64_t batch = x.size(0), heads = x.size(1), tokens = x.size(2);
  const int64_t group = heads / key_heads_;
  parallel_for(key_heads_, [&](int64_t key_head) {
    const SingleThreaded one_thread;
    Sums& sums = to[static_cast<size_t>(layer * key_heads_ + key_head)];
    std::vector<double> rows(static_cast<size_t>(group * tokens * size_));
    for (int64_t b = 0; b < batch; ++b) {
      const float* from = all.data<float>() + (b * heads + key_head * group) * tokens * size_;
      std::copy_n(from, rows.size(), rows.begin());
      const auto n = static_cast<int>(group * tokens), d = static_cast<int>(size_);
      for (int64_t r = 0; r < n; ++r)
        for (int64_t c = 0; c < size_; ++c)
          sums.first[static_cast<size_t>(c)] += rows[static_cast<size_t>(r * size_ + c)];
      cblas_dsyrk(CblasRowMajor, CblasUpper, CblasTrans, d, n, 1.0, rows.data(), d, 1.0,
                  sums.second.data(), d);
      sums.count += n;
    }
  });
}

void QueryKeyMoments::offer(int64_t layer, const Tensor& q, const Tensor& k) {
  add(q, queries_, layer);
  add(k, keys_, layer);
}

Observer QueryKeyMoments::observer() {
  return [this](int64_t layer, const Tensor& q, const Tensor& k, const Tensor&) {
    offer(layer, q, k);
  };
}

void QueryKeyMoments::sum(const Group& group) {
  if (group.alone()) return;
  std::vector<double> all;
  const auto each = [&](const auto& visit) {
    for (std::vector<Sums>* of : {&queries_, &keys_})
      for (Sums& sums : *of) visit(sums);
  };
  each([&](const Sums& sums) {
    all.push_back(static_cast<double>(sums.count));
    all.insert(all.end(), sums.first.begin(), sums.first.end());
    all.insert(all.end(), sums.second.begin(), sums.second.end());
  });
  group.sum(all);
  const double* from = all.data();
  each([&](Sums& sums) {
    sums.count = static_cast<int64_t>(*from++);
    for (std::vector<double>* values : {&sums.first, &sums.second}) {
      std::copy_n(from, values->size(), values->begin());
      from += values->size();
    }
  });
}

Moments QueryKeyMoments::moments(const Sums& sums, int64_t layer, int64_t key_head) const {
  if (sums.count == 0) fail("layer {}, head {}: no query or key", layer + 1, key_head + 1);
  const auto size = static_cast<size_t>(size_);
  const double scale = 1 / static_cast<double>(sums.count);
  Moments out = {sums.first, sums.second, {}};
  for (double& x : out.mean) x *= scale;
  for (size_t i = 0; i < size; ++i)
    for (size_t j = i; j < size; ++j) out.second[j * size + i] = out.second[i * size + j] *= scale;
  out.covariance = out.second;
  for (size_t i = 0; i < size; ++i)
    for (size_t j = 0; j < size; ++j) out.covariance[i * size + j] -= out.mean[i] * out.mean[j];
  // Finite vectors have finite sums: float32 squared is far inside double precision.
  if (!std::ranges::all_of(out.second, [](double x) { return std::isfinite(x); }))
    fail("layer {}, head {}: a query or key is not finite", layer + 1, key_head + 1);
  return out;
}

Moments QueryKeyMoments::queries(int64_t layer, int64_t key_head) const {
  return moments(queries_[static_cast<size_t>(layer * key_heads_ + key_head)], layer, key_head);
}

Moments QueryKeyMoments::keys(int64_t layer, int64_t key_head) const {
  return moments(keys_[static_cast<size_t>(layer * key_heads_ + key_head)], layer, key_head);
}

}  // namespace dofla
