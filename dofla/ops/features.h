// The features of one layer. Tied ones, the paper's, have the same directions z for queries and
// keys, and every query head has its own. Untied ones belong to a key head: queries have directions
// u, a set for every query head that shares the key head, keys have z and a weight η of their norm
// term, and all query heads of the group read one state. docs/theory.md, "Untied features".
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "dofla/core/tensor.h"

namespace dofla {

struct Features {
  // M of every head that has a state, each at least 1: of query heads, or of key heads if untied.
  std::vector<int64_t> counts;
  Tensor z;                   // [ΣM, D], F32; head after head
  Tensor log_alpha;           // [ΣM], F32
  bool subtract_norm = true;  // whether log φ̃ has its term −|x|²/(2√d); DiJiang's has not
  Tensor u = {};  // [group · ΣM, D], F32; query head after query head; undefined where tied
  Tensor norm_weight = {};  // [heads], F32: η; undefined where tied, as if 1
  Tensor gpu_offsets = {};  // offsets() for kernels, [heads + 1] in I64; undefined on the CPU

  bool empty() const { return counts.empty(); }  // no features: other attention than linear
  bool untied() const { return u.defined(); }
  int64_t heads() const { return static_cast<int64_t>(counts.size()); }  // that have a state
  int64_t group() const;  // query heads that share a state; 1 where tied
  int64_t query_heads() const { return heads() * group(); }
  int64_t total() const;                       // ΣM
  std::vector<int64_t> offsets() const;        // first feature of every head, then ΣM
  std::vector<int64_t> query_offsets() const;  // first row of u of every query head, then all rows
  Features to(const Device& device) const;     // itself if it is there already
};

// Of all that learns in the features of a layer; those of u and η undefined where features are
// tied.
struct FeatureGradients {
  Tensor z;                 // [ΣM, D]
  Tensor log_alpha;         // [ΣM]
  Tensor u = {};            // [group · ΣM, D]
  Tensor norm_weight = {};  // [heads]
};

FeatureGradients zero_gradients(const Features& features);

// What learns, with its names: the parts of Features, FeatureGradients or FeatureMoments.
template <class T>
auto feature_parts(T& of) {
  using Part = std::remove_reference_t<decltype((of.z))>;
  return std::array<std::pair<std::string_view, Part*>, 4>{
      {{"z", &of.z}, {"log_alpha", &of.log_alpha}, {"u", &of.u}, {"norm_weight", &of.norm_weight}}};
}

// Untied features that start where tied ones of the key heads are: u = z in every query head of a
// group, η = 1. `tied` has one head for every key head.
Features untie(const Features& tied, int64_t query_heads);

// Throws std::invalid_argument unless the parts fit each other and the head width D.
void require_valid(const Features& features, int64_t width);

// Throws std::invalid_argument unless `x` is [B, X, T, D] in F32 (on a GPU also BF16) with X a
// divisor of the number of query heads: query head h then reads head h / (H / X) of x. Also checks
// the features.
void require_heads(const Tensor& x, const Features& features, const char* what);

// The same for the queries and the keys of a layer: X is H for q, and for k the number of key
// heads.
void require_queries_and_keys(const Tensor& q,  // [B, H, T, D]
                              const Tensor& k,  // [B, Hkv, T, D]
                              const Features& features, const char* what_q, const char* what_k);

}  // namespace dofla
