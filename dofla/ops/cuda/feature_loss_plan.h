// How the work of a feature loss is laid out: heads, items, workspace. Shared by its kernels.
//
// An item is what one block of threads computes alone: the gradients that some 64 or 128 features
// of one head (a window) get from two tiles of 64 queries of one sequence, the first and the last
// that are not taken yet, so that under a causal mask all items of a head cost the same. What items
// found is summed in a fixed order afterwards.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "dofla/ops/cuda/feature_loss_kernels.h"
#include "dofla/ops/cuda/head_rows.h"

namespace dofla::cuda::feature_pairs {

constexpr int kTile = 64;  // queries or keys, and columns, of a tile
constexpr int kTileBytes = 64 * 64 * 2;
constexpr int kFactorPlanes = 2;  // bf16 parts of a factor
constexpr int kFeatureParts = 3;  // bf16 parts of a z
constexpr int kNarrowBlocks = 2;  // of one group, on a processor at a time
constexpr float kLog2E = 1.44269504088896f;
constexpr float kLn2 = 0.693147180559945f;

// All logarithms on the device are to base 2. With l_im = log φ̃_m(x_i) − peak_i ≤ 0, factors are
// 2^(l + kLift): they vanish below 2^-126. A product Σ_m of at least kSmallestProduct has lost
// nothing, since a term with a vanished factor is below 2^-83. A smaller one, unless its pair is
// negligible beside the others of its row, is computed from the logarithms; both of its rows have
// an l below kWideRow, and only such rows keep theirs.
//
// Where keys are long, queries and keys peak at different features and most products would vanish.
// K̂ does not change when log φ̃_m is raised for queries by what it is lowered for keys: the balance
// of a feature raises it to the peak of the (sampled) query that is nearest to it.
constexpr float kLift = 43.0f;
constexpr float kLogSmallestProduct = -36.0f;
constexpr float kSmallestProduct = 1.0f / (int64_t{1} << 36);
constexpr float kWideRow = -121.0f;
constexpr float kNegligible = -40.0f;  // beside 1: below the rounding of any sum it goes into

// A stand-in for −∞ that can be subtracted from itself: the maximum or the log-sum of nothing.
constexpr float kNothing = -1e29f;
constexpr float kInfinity = __builtin_huge_valf();

struct HeadPlan {
  int count;         // M
  int first;         // row in z
  int padded;        // M rounded up to 16
  int padded_first;  // as `first`, of padded rows
  int window;        // features of an item
  int first_item;    // of windows · B · pairs
  __host__ __device__ int windows() const { return (padded + window - 1) / window; }
};

struct ItemResult {
  double loss;
  float log_scale;   // what loss and gradients are divided by, twice: l2
  float log_wanted;  // the scale that the item's own pairs ask for
};

// The queries or the keys of all heads: factors and logs [B, head, T, padded M of the head].
struct Side {
  HeadRows x;  // [B, X, T, kernel width] in bf16 parts
  int64_t part_step;
  int x_heads;
  __nv_bfloat16* factors;  // kFactorPlanes times, plane_step apart
  float* logs;             // l, of wide rows only
  float* peaks;            // [B, H, T]

  // The first row of the vectors that query head `h` of `heads` is about.
  __device__ const __nv_bfloat16* x_of(int b, int h, int heads) const {
    return static_cast<const __nv_bfloat16*>(x.data) + b * x.batch_step +
           h / (heads / x_heads) * x.head_step;
  }
};

struct Plan {
  int batch, heads, tokens, width;
  int parts;         // bf16 parts of an element of q and k
  int kernel_width;  // 64 or 128
  int total, padded_total;
  int tiles, pairs;  // of 64 queries; of tiles
  int wide_window, narrow_items, wide_items;
  bool causal, sequence_scale, subtract_norm;
  PairLoss loss;

  // Softmax needs no pass over the pairs for the sums of K̂'s rows: they are products of features
  // with sums of features over tiles of keys.
  __host__ __device__ bool row_sums_from_features() const { return loss == PairLoss::kSoftmax; }
  __host__ __device__ int items() const { return narrow_items + wide_items; }
  __host__ __device__ int width16() const { return (width + 15) / 16; }
  __host__ __device__ int64_t plane_step() const { return int64_t{batch} * padded_total * tokens; }
  // The first row of an item's partial gradients.
  __host__ __device__ int64_t partial_row(int item) const {
    return item < narrow_items
               ? int64_t{item} * kTile
               : int64_t{narrow_items} * kTile + int64_t{item - narrow_items} * wide_window;
  }
};

// Calls body(parts, width), integral constants both, with what kernels are made for.
template <class Body>
cudaError_t with_tiling(const Plan& plan, const Body& body) {
  const auto with_width = [&](auto parts) {
    return plan.kernel_width == 64 ? body(parts, std::integral_constant<int, 64>())
                                   : body(parts, std::integral_constant<int, 128>());
  };
  return plan.parts == 1 ? with_width(std::integral_constant<int, 1>())
                         : with_width(std::integral_constant<int, 3>());
}

struct Workspace {
  HeadPlan* heads;     // [H]
  int* next_item;      // [2]: of narrow and of wide heads
  __nv_bfloat16* z;    // [kFeatureParts, padded ΣM, kernel width]
  float* offsets;      // [padded ΣM]: ½ (log α − log M)
  float* balance;      // [padded ΣM]; infinite for padding
  float* key_sums;     // [B, tiles, padded ΣM]: log Σ_j φ̃_m(k_j) over the keys of a tile, then
                       // over those of all tiles before it (over all keys without a mask)
  float* earlier;      // [B, H, T]: log Σ_j of the products with those keys
  float* some_logits;  // [B, H]: the largest log K of some pairs, where the scale of l2 begins
  __nv_bfloat16* x_parts[2];  // copies of q and k, where they need one
  Side side[2];               // queries, keys
  float* partial_z;           // [partial rows, kernel width]
  float* partial_alpha;       // [partial rows]
  ItemResult* results;        // [items]
  float* weights;             // [items]
  float2* pairs;              // [blocks, 64, 64]: pairs that are computed from logarithms
};

// What a kernel over pairs is told. `first_item` and `item_count` name narrow or wide heads.
struct PairTask {
  Plan plan;
  Workspace work;
  int first_item, item_count, stages;
  int* next_item;
};

struct PairLaunch {
  int groups;  // of 64 features and 4 warps
  int blocks;
  size_t shared_bytes;
};

struct Item {
  HeadPlan head;
  int h, b, window_first, blocks16;  // 16 · blocks16 features from window_first on
  int row_tile;                      // and its mirror
  int64_t feature_row;               // of factors and logs
};

// Shared memory beside the tiles.
struct PairState {
  float key_peaks[2][kTile];                               // of each stage
  unsigned long long row_mask[kTile], column_mask[kTile];  // pairs computed from logarithms
  float row_statistics[2][kTile][6];                       // of each group
  float largest[8];                                        // of each warp
  double losses[8];
  Item item;
  int number;    // of the item
  int vanished;  // whether the masks are not empty
};

// bf16 parts of a weight and of what gradients are products of: as precise as the inputs are.
constexpr int weight_parts(int parts) {
  return parts == 1 ? 1 : 2;
}

// Tiles of shared memory that a block needs; `foreign` for heads of more than one window.
constexpr int shared_tiles(int parts, int kernel_width, int groups, int stages, bool foreign) {
  const int x = parts * kernel_width / kTile, factors = kFactorPlanes * groups;
  return x + factors + weight_parts(parts) + stages * (x + factors) +
         (foreign ? 2 * kFactorPlanes : 0);
}

cudaError_t write_plan(const Plan& plan, const int64_t* counts, const Workspace& work,
                       cudaStream_t stream);
cudaError_t split_inputs(const Plan& plan, const Workspace& work, const FeatureLossInputs& inputs,
                         bool copy_inputs, cudaStream_t stream);
cudaError_t find_balance(const Plan& plan, const Workspace& work, cudaStream_t stream);
cudaError_t write_factors(const Plan& plan, const Workspace& work, cudaStream_t stream);
cudaError_t find_some_logits(const Plan& plan, const Workspace& work, cudaStream_t stream);
cudaError_t softmax_pairs(const PairTask& task, const PairLaunch& launch, cudaStream_t stream);
cudaError_t l2_pairs(const PairTask& task, const PairLaunch& launch, cudaStream_t stream);
cudaError_t attention_mse_pairs(const PairTask& task, const PairLaunch& launch,
                                cudaStream_t stream);
cudaError_t sum_items(const Plan& plan, const Workspace& work, const FeatureLossOutputs& outputs,
                      cudaStream_t stream);

}  // namespace dofla::cuda::feature_pairs
