// How the work of a feature loss is laid out: heads, work items, workspace. Shared by its kernels;
// docs/kernels.md, "Feature losses", has the mathematics and the order of the launches.
//
// A work item is what one block of threads computes alone: the gradients that a window of 64 or 128
// features of one head receives from two tiles of 64 queries of one sequence. The tiles lie
// symmetrically, one from each end, so that under a causal mask all items of a head take equally
// long. The results of the items are summed in a fixed order afterwards.
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
constexpr int kFactorPlanes = 2;      // bf16 parts of a factor
constexpr int kFeatureParts = 3;      // bf16 parts of a z
constexpr int kBalanceSequences = 8;  // of the batch, at most, that the balance is taken from
constexpr int kNarrowBlocks = 2;      // blocks of one warp group on a multiprocessor at a time
constexpr float kLog2E = 1.44269504088896f;
constexpr float kLn2 = 0.693147180559945f;

// Lifting and vanished products, docs/kernels.md. All logarithms on the device are to base 2.
constexpr float kLift = 43.0f;  // factors are 2^(log φ̃ − peak + kLift)
constexpr float kLogSmallestProduct = -36.0f;
constexpr float kSmallestProduct = 1.0f / (int64_t{1} << 36);  // a smaller product has vanished
constexpr float kWideRow = -121.0f;    // rows with a log feature that far below their peak keep all
constexpr float kNegligible = -40.0f;  // relative to 1: below the rounding of any sum

// Stands for −∞ but can be subtracted from itself: the maximum or the log-sum-exp of no terms.
constexpr float kNothing = -1e29f;
constexpr float kInfinity = __builtin_huge_valf();

// Of a query head.
struct HeadPlan {
  int count;         // M
  int first;         // feature among those of all query heads: the row in u, or in z where tied
  int padded;        // M rounded up to 16
  int padded_first;  // as `first`, of padded rows
  int window;        // features of an item
  int first_item;    // of windows · B · pairs
  __host__ __device__ int windows() const { return (padded + window - 1) / window; }
};

struct ItemResult {
  double loss;
  float log_scale;   // l2: loss and gradients are divided by the square of this scale
  float log_wanted;  // l2: the scale that the item's own pairs ask for
};

// The queries or the keys of all heads: factors and logs [B, head, T, padded M of the head].
struct Side {
  HeadRows x;  // [B, X, T, kernel width] in bf16 parts
  int64_t part_step;
  int x_heads;
  __nv_bfloat16* factors;     // kFactorPlanes times, plane_step apart
  float* logs;                // l, of wide rows only
  float* peaks;               // [B, H, T]
  __nv_bfloat16* directions;  // [kFeatureParts, padded ΣM, kernel width]: z or u
  const float* norm_weight;   // [Hkv], of untied keys: η, or null
  float* norms;               // [B, H, T], of untied keys: |k|²/(2√D), or null

  // The first row of the vectors that query head `h` of `heads` reads.
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
  int sharing;  // query heads that share features
  int block;    // queries that see the same keys, a power of two
  bool causal, sequence_scale, subtract_norm, untied;
  float padded_rest;
  PairLoss loss;

  // The softmax loss needs no pass over the pairs for the row sums of K̂: they are products of
  // features with sums of features over tiles of keys.
  __host__ __device__ bool row_sums_from_features() const { return loss == PairLoss::kSoftmax; }
  __host__ __device__ int items() const { return narrow_items + wide_items; }
  __host__ __device__ int width16() const { return (width + 15) / 16; }
  __host__ __device__ int64_t plane_step() const { return int64_t{batch} * padded_total * tokens; }
  // A head's feature m, as a row of z and log α.
  __device__ int own_feature(const HeadPlan* heads, int h, int m) const {
    return heads[h / sharing * sharing].first / sharing + m;
  }
  // The first row of an item's partial gradients.
  __host__ __device__ int64_t partial_row(int item) const {
    return item < narrow_items
               ? int64_t{item} * kTile
               : int64_t{narrow_items} * kTile + int64_t{item - narrow_items} * wide_window;
  }
};

// Calls body(parts, width), both integral constants, with sizes that kernels are compiled for.
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
  const float* rest;     // [B, H, T], natural logarithms, or null
  HeadPlan* heads;       // [H]
  int* next_item;        // [2]: of narrow and of wide heads
  float* offsets;        // [padded ΣM]: ½ (log α − log M)
  float* balance;        // [padded ΣM]
  float* balance_parts;  // [2 · sampled sequences, padded ΣM]: of queries, then of keys
  float* key_sums;     // [B, tiles, padded ΣM]: log Σ_j φ̃_m(k_j) over the keys of a tile, then
                       // over those of all tiles before it (over all keys without a mask)
  float* earlier;      // [B, H, T]: log Σ_j of the products with those keys, and of the rest
  float* some_logits;  // [B, H]: the largest log K of sampled pairs, the first scale of l2
  __nv_bfloat16* x_parts[2];  // q and k as bf16 parts, where they have to be copied
  Side side[2];               // queries, keys
  // [partial rows, kernel width]: of z; untied 4 times, of queries and keys by two warps each.
  float* partial_z;
  float* partial_alpha;  // [partial rows]
  float* partial_norm;   // [partial rows], of untied features: of η
  double* norm_rows;     // [ΣM], of untied features: of η, feature by feature
  ItemResult* results;   // [items]
  float* weights;        // [items]
  float2* pairs;         // [blocks, 64, 64]: pairs that are computed from logarithms
};

// The arguments of the pair kernel. `first_item` and `item_count` select the work items of narrow
// heads (at most 64 features) or of wide ones.
struct PairTask {
  Plan plan;
  Workspace work;
  int first_item, item_count, stages;
  int* next_item;
};

struct PairLaunch {
  int groups;  // warp groups: 4 warps and 64 features each
  int blocks;
  size_t shared_bytes;
};

struct Item {
  HeadPlan head;
  int h, b, window_first, blocks16;  // 16 · blocks16 features from window_first on
  int row_tile;                      // the second tile is its mirror image
  int64_t feature_row;               // of factors and logs
};

// Shared memory in addition to the tiles.
struct PairState {
  float key_peaks[2][kTile];                               // of each stage
  unsigned long long row_mask[kTile], column_mask[kTile];  // pairs computed from logarithms
  float row_statistics[2][kTile][6];                       // of each group
  float largest[8];                                        // of each warp
  double losses[8];
  Item item;
  int number;    // of the item
  int vanished;  // whether any pair is in the masks
};

// bf16 parts of a weight and of what gradients are products of: as precise as the inputs are.
constexpr int weight_parts(int parts) {
  return parts == 1 ? 1 : 2;
}

// Tiles of shared memory that a block needs; `foreign` adds those for features of other windows.
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
cudaError_t untied_softmax_pairs(const PairTask& task, const PairLaunch& launch,
                                 cudaStream_t stream);
cudaError_t untied_l2_pairs(const PairTask& task, const PairLaunch& launch, cudaStream_t stream);
cudaError_t untied_attention_mse_pairs(const PairTask& task, const PairLaunch& launch,
                                       cudaStream_t stream);
cudaError_t sum_items(const Plan& plan, const Workspace& work, const FeatureLossOutputs& outputs,
                      cudaStream_t stream);

}  // namespace dofla::cuda::feature_pairs
