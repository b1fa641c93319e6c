// One attention problem in double precision: what the references compute with, and what the
// float32 ops receive.
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/core/file.h"
#include "dofla/core/tensor.h"
#include "dofla/ops/features.h"

namespace dofla::reference {

struct AttentionCase {
  int64_t batch = 1, heads = 1, key_heads = 1, tokens = 1, width = 1;
  int64_t block = 1;                // of linear attention: keys that become visible together
  std::vector<int64_t> counts;      // M of every head: of query heads, or of key heads if untied
  std::vector<double> q;            // [B, H, T, D]
  std::vector<double> k, v;         // [B, Hkv, T, D]
  std::vector<double> z;            // [ΣM, D]
  std::vector<double> log_alpha;    // [ΣM]
  std::vector<double> u;            // [group · ΣM, D] of untied features; empty where tied
  std::vector<double> norm_weight;  // [Hkv] of untied features: η

  Tensor q_tensor() const;
  Tensor k_tensor() const;
  Tensor v_tensor() const;
  Features features() const;

  bool untied() const { return !u.empty(); }
  // Of a query head: where its features are, its M, and its first rows of z and u.
  size_t feature_head(int64_t head) const;
  int64_t count(int64_t head) const { return counts[feature_head(head)]; }
  int64_t offset(int64_t head) const;
  int64_t query_offset(int64_t head) const;
  int64_t keys_seen(int64_t token) const { return (token / block + 1) * block; }

  // How far a float32 log φ̃_m(x) may be from the exact one: rounding of the inputs, of a sum of D
  // products (errors of either sign, hence √D) and of the result, relative to the sums' size.
  double log_feature_error() const;
  double largest_value() const;  // max |v|
  double largest_norm() const;   // max of |q_t| and |k_t|
};

struct CaseOptions {
  int64_t batch = 1, key_heads = 1, tokens = 64, width = 16;
  std::vector<int64_t> counts = {24};  // one a query head, or a key head if there is a group
  int64_t group = 0;  // of untied features: query heads of a key head, one for each of the counts
  double query_scale = 1, key_scale = 1;
  int64_t block = 1;
  uint64_t seed = 1;
};

// Normal q, k, v and z; values that float32 represents exactly.
AttentionCase random_case(const CaseOptions& options);

// Keys whose features grow by e^100 and more along the sequence: a maximum that looks ahead within
// a chunk would wipe out the rows before.
AttentionCase keys_that_grow();

// q, k, v, z and log_alpha of a features*.safetensors file.
AttentionCase fixture_case(const fs::path& file);

// The same problem with untied features: every head's own, u beside z and η beside 1.
AttentionCase untied_near(const AttentionCase& tied);

std::vector<double> to_doubles(const Tensor& tensor);
Tensor to_tensor(const std::vector<double>& values, const Shape& shape);

}  // namespace dofla::reference
