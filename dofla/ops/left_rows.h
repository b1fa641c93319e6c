// Where the queries and keys lie that a cache of exact keys leaves to features: for
// ops/hybrid_attention.cc, whose parts share it.
#pragma once

#include "dofla/ops/exact_keys.h"

namespace dofla {

// The first token of every key head that sees keys which have left.
std::vector<int64_t> first_left(const std::vector<HeadCache>& caches);

// [1, Hkv, rows]: of every head first, first + 1, … up to `end`, and `after` from there on.
Tensor rows_from(const std::vector<int64_t>& first, int64_t end, int64_t rows, const Device& device,
                 int32_t after = -1);

// Rows of [B, T, H, D].
Tensor gather_tokens(const Tensor& rows, const Tensor& index);

// The queries and keys whose pairs are left to the features, in the rows that `queries` names.
struct Left {
  Tensor queries;  // [1, Hkv, R] I32
  Tensor q, k, v;
};
Left left_of(const Tensor& q, const Tensor& k, const Tensor& v,
             const Tensor& order,  // of Evictions
             const std::vector<int64_t>& first);

}  // namespace dofla
