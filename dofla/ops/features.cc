#include "dofla/ops/features.h"

#include <algorithm>
#include <numeric>

namespace dofla {

int64_t Features::total() const {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

std::vector<int64_t> Features::offsets() const {
  std::vector<int64_t> out(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), out.begin() + 1);
  return out;
}

Features Features::to(const Device& device) const {
  Features there = *this;
  there.z = z.to(device);
  there.log_alpha = log_alpha.to(device);
  there.gpu_offsets = {};
  if (device.is_cuda() && !empty()) {
    const std::vector<int64_t> begins = offsets();
    Tensor here({static_cast<int64_t>(begins.size())}, DType::kI64);
    std::copy(begins.begin(), begins.end(), here.data<int64_t>());
    there.gpu_offsets = here.to(device);
  }
  return there;
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
  require(features.z.dtype() == DType::kF32 && features.log_alpha.dtype() == DType::kF32,
          "features: expected F32, found z in {} and log_alpha in {}", name(features.z.dtype()),
          name(features.log_alpha.dtype()));
}

void require_heads(const Tensor& x, const Features& features, const char* what) {
  if (x.rank() != 4)  // not require(): a decoder comes here for every token, and wants no message
    throw std::invalid_argument(
        fmt::format("{}: expected [B, H, T, D], found {}", what, to_string(x.shape())));
  require(x.dtype() == DType::kF32 || (x.device().is_cuda() && x.dtype() == DType::kBF16),
          "{}: expected F32, found {}", what, name(x.dtype()));
  require(x.size(3) >= 1, "{}: head width 0", what);
  require_valid(features, x.size(3));
  require(x.size(1) >= 1 && features.heads() % x.size(1) == 0,
          "{}: {} heads do not divide the {} query heads of the features", what, x.size(1),
          features.heads());
}

}  // namespace dofla
