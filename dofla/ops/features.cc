#include "dofla/ops/features.h"

#include <algorithm>
#include <numeric>

namespace dofla {

int64_t Features::group() const {
  return untied() ? u.size(0) / total() : 1;
}

int64_t Features::total() const {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

std::vector<int64_t> Features::offsets() const {
  std::vector<int64_t> out(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), out.begin() + 1);
  return out;
}

std::vector<int64_t> Features::query_offsets() const {
  std::vector<int64_t> out = {0};
  for (const int64_t count : counts)
    for (int64_t i = 0; i < group(); ++i) out.push_back(out.back() + count);
  return out;
}

Features Features::to(const Device& device) const {
  Features there = *this;
  for (auto [name, part] : feature_parts(there))
    if (part->defined()) *part = part->to(device);
  there.gpu_offsets = {};
  if (device.is_cuda() && !empty()) {
    const std::vector<int64_t> begins = offsets();
    Tensor here({static_cast<int64_t>(begins.size())}, DType::kI64);
    std::copy(begins.begin(), begins.end(), here.data<int64_t>());
    there.gpu_offsets = here.to(device);
  }
  return there;
}

FeatureGradients zero_gradients(const Features& features) {
  FeatureGradients gradients;
  const auto from = feature_parts(features);
  const auto to = feature_parts(gradients);
  for (size_t i = 0; i < from.size(); ++i) {
    const Tensor& part = *from[i].second;
    if (part.defined()) *to[i].second = Tensor::zeros(part.shape(), DType::kF32, part.device());
  }
  return gradients;
}

Features untie(const Features& tied, int64_t query_heads) {
  require(!tied.untied() && query_heads % tied.heads() == 0,
          "untie: {} tied heads do not divide {} query heads", tied.heads(), query_heads);
  Features out = tied;
  const int64_t group = query_heads / tied.heads(), width = tied.z.size(1);
  const std::vector<int64_t> offsets = tied.offsets();
  out.u = Tensor({group * tied.total(), width}, DType::kF32, tied.z.device());
  int64_t row = 0;
  for (int64_t head = 0; head < tied.heads(); ++head) {
    const Tensor own =
        tied.z.slice(offsets[static_cast<size_t>(head)], offsets[static_cast<size_t>(head) + 1]);
    for (int64_t i = 0; i < group; ++i, row += own.size(0))
      out.u.slice(row, row + own.size(0)).assign(own);
  }
  Tensor ones({tied.heads()});
  std::fill_n(ones.data<float>(), ones.count(), 1.0f);
  out.norm_weight = ones.to(tied.z.device());
  return out;
}

void require_valid(const Features& features, int64_t width) {
  require(!features.counts.empty(), "features: expected at least one head, found none");
  int64_t total = 0;
  for (size_t head = 0; head < features.counts.size(); ++head) {
    const int64_t count = features.counts[head];
    require(count >= 1, "features: head {}: expected at least 1 feature, found {}", head, count);
    require(!__builtin_add_overflow(total, count, &total), "features: too many in total");
  }
  require_shape(features.z, {total, width}, "features: z");
  require_shape(features.log_alpha, {total}, "features: log_alpha");
  if (features.untied()) {
    require(features.u.rank() == 2 && features.u.size(0) % total == 0,
            "features: u: expected [group · {}, {}], found {}", total, width,
            to_string(features.u.shape()));
    require_shape(features.u, {features.group() * total, width}, "features: u");
    require_shape(features.norm_weight, {features.heads()}, "features: norm_weight");
  }
  for (auto [part_name, part] : feature_parts(features))
    require(!part->defined() || part->dtype() == DType::kF32,
            "features: expected F32, found {} in {}", part_name, name(part->dtype()));
}

void require_heads(const Tensor& x, const Features& features, const char* what) {
  if (x.rank() != 4)  // not require(): a decoder comes here for every token, and wants no message
    throw std::invalid_argument(
        fmt::format("{}: expected [B, H, T, D], found {}", what, to_string(x.shape())));
  require(x.dtype() == DType::kF32 || (x.device().is_cuda() && x.dtype() == DType::kBF16),
          "{}: expected F32, found {}", what, name(x.dtype()));
  require(x.size(3) >= 1, "{}: head width 0", what);
  require_valid(features, x.size(3));
  require(x.size(1) >= 1 && features.query_heads() % x.size(1) == 0,
          "{}: {} heads do not divide the {} query heads of the features", what, x.size(1),
          features.query_heads());
}

void require_queries_and_keys(const Tensor& q, const Tensor& k, const Features& features,
                              const char* what_q, const char* what_k) {
  require_heads(q, features, what_q);
  require_shape(q, {q.size(0), features.query_heads(), q.size(2), q.size(3)}, what_q);
  require_heads(k, features, what_k);
  const int64_t key_heads = features.untied() ? features.heads() : k.size(1);
  require_shape(k, {q.size(0), key_heads, q.size(2), q.size(3)}, what_k);
}

}  // namespace dofla
