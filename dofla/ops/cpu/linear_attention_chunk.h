// One state of linear attention and the query heads that read it, a chunk of tokens at a time: what
// forward and backward share.
#pragma once

#include <cstdint>
#include <vector>

namespace dofla::cpu {

// The part of LinearAttentionState that belongs to one head that has a state, in one sequence.
struct HeadState {
  float* log_max;  // [M]
  float* a;        // [M]
  float* b;        // [M, D]
  int64_t count;   // M
  int64_t width;   // D
};

// A chunk's keys and queries as bounded factors. With peak_m the largest log φ̃_m(k) of the state
// and the chunk together, and shift_i = max_m (log φ̃_m(q_i) + peak_m),
//   φ̃_m(q_i) φ̃_m(k_j) = exp(shift_i) · query_im · key_jm,   0 ≤ query, key ≤ 1.
struct KeyFactors {
  KeyFactors(int64_t rows, int64_t count);

  std::vector<float> peak;   // [M]
  std::vector<float> decay;  // [M]: exp(state's log_max − peak)
  std::vector<float> faded;  // [M]: the state's a, times decay
  std::vector<float> key;    // [rows, M]
};
struct QueryFactors {
  QueryFactors(int64_t rows, int64_t count);

  std::vector<float> query;        // [rows, M]
  std::vector<float> shift;        // [rows]
  std::vector<float> weight;       // [rows, rows]: Σ_m query_im key_jm where i sees j, else 0
  std::vector<float> denominator;  // [rows]: Σ_j K̂(q_i, k_j) / exp(shift_i), state included

  float log_sum(int64_t row) const;  // log Σ_j K̂(q_i, k_j)
};

void factor_chunk_keys(const HeadState& state,
                       const float* log_k,  // [rows, M]
                       int64_t rows, KeyFactors& keys);

// False when a later key of the chunk dwarfs what an earlier row may see, so far that digits of
// that row are lost: split the chunk then. A single block, whose rows see the same, never fails.
bool factor_chunk_queries(const KeyFactors& keys,
                          const float* log_q,  // [rows, M], up to a constant for each row
                          int64_t rows, int64_t block, QueryFactors& queries);

// Where to split a chunk of whole blocks.
inline int64_t half_of_blocks(int64_t rows, int64_t block) {
  return rows / block / 2 * block;
}

// Expresses the state relative to the chunk's peak.
void decay_state(const KeyFactors& keys, HeadState& state);

// Numerators over denominators of one query head; the state already decayed, not yet holding the
// chunk.
void chunk_output(const HeadState& state, const QueryFactors& queries,
                  const float* v,  // [rows, D]
                  int64_t rows, float* out, int64_t out_stride);

// Adds the chunk's keys and values to the decayed state.
void absorb_chunk(const KeyFactors& keys, const float* v, int64_t rows, HeadState& state);

// The whole of the above for a single token, which joins the state while the first query head reads
// it. `scratch` holds 3 M.
void attend_token(const float* log_q,  // [heads, M]
                  int64_t heads,       // query heads that read the state
                  const float* log_k,  // [M]
                  const float* v,      // [D]
                  HeadState& state, float* scratch,
                  float* out,                               // [heads, D]
                  float* log_sum, int64_t log_sum_stride);  // one a head, or null

}  // namespace dofla::cpu
