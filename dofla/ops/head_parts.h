// Some heads of a layer as a layer of their own, and back: key heads that hold different numbers of
// exact keys are computed apart. Query heads and features go with their key head.
#pragma once

#include <vector>

#include "dofla/ops/exact_keys.h"
#include "dofla/ops/features.h"

namespace dofla {

// Key heads of a layer, ascending.
struct HeadPart {
  std::vector<int64_t> key_heads;
  int64_t of = 0;  // key heads of the whole layer

  bool whole() const { return static_cast<int64_t>(key_heads.size()) == of; }
};

struct KeyPart {
  HeadPart part;
  ExactKeys exact;  // equally many in all heads of the part
};

// The heads that hold equally many keys, the fewest first. One part where all do.
std::vector<KeyPart> equal_key_parts(const ExactKeys& exact, int64_t key_heads);

// The heads of the part; x itself if these are all. X is a multiple of the key heads of the layer:
// heads h·X/Hkv to (h + 1)·X/Hkv − 1 go with key head h. x may be a view.
Tensor take_heads(const Tensor& x, const HeadPart& part);  // [B, X, T, D]
// The other way: writes the part's heads into those of the layer, which may be a view.
void put_heads(const Tensor& from, const HeadPart& part, Tensor& to);  // [B, X, T, D]

// Copies on the same device, the features themselves if the part is the whole layer.
Features take_heads(const Features& features, const HeadPart& part);
void put_heads(const FeatureGradients& from, const Features& of_layer, const HeadPart& part,
               FeatureGradients& to);

}  // namespace dofla
