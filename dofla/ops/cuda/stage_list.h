// One token of one sequence through a whole model in a single launch, on a Hopper GPU. The blocks
// of the launch, one a multiprocessor, go through a list of stages together. Weights come to shared
// memory in the background, stages ahead of their use, and blocks exchange what a stage computes
// number by number (tagged_row.cuh): no stage waits for the end of another. docs/kernels.md, "The
// persistent decode kernel".
// The same input gives the same bits.
#pragma once

#include "dofla/ops/cuda/few_row_kernels.h"
#include "dofla/ops/cuda/linear_attention_kernels.h"

namespace dofla::cuda {

// Rows between stages are float32 [kRowCopies, count], zeros at first, of which the last bit
// belongs to tagged_row.cuh.
constexpr int kRowCopies = 2;

// Query heads that share a key head attend to a cache together, at most so many.
constexpr int kMostQueriesTogether = 8;

// tokens[id] + positions[position].
struct EmbedStage {
  int32_t width;
  const void* tokens;     // [V, width], bf16
  const void* positions;  // [context, width], bf16, or null
  float* y;               // row
};

// y = f(norm(x) W + bias) · factor + residual.
struct ProductStage {
  int32_t inputs, outputs;
  int32_t blocks;       // that take part, the first ones
  int32_t tile_rows;    // outputs that a block takes at a time
  int32_t warp_inputs;  // inputs of a warp
  const float* x;       // row
  RowNorm norm;
  const void* weight;     // [outputs, inputs], bf16
  const void* bias;       // [outputs], bf16, or null
  const float* factor;    // row, or null
  const float* residual;  // row, or null
  float* y;               // row; null: the result goes to `logits`
  float* logits;          // [outputs]
  Activation f;           // where nonlinear
  bool nonlinear;
};

// linear_attention_step, after place_heads.
struct AttentionStage {
  int32_t heads, group, width;
  int32_t sharing;  // query heads that read one state: 1 where features are tied
  float inner_scale, norm_scale;
  HeadRows q, k, v;              // in rows, of which every copy lies a batch_step after the last
  const float *q_norm, *k_norm;  // [width], of their RMS norms, or null
  float epsilon;                 // of the norms
  int32_t pairs;                 // coordinate i turns with i + pairs
  const float* frequencies;      // [pairs]
  const int64_t* offsets;        // [heads / sharing + 1], of every state's features
  const float* z;
  const float* log_alpha;
  const float* u;            // of untied features, or null
  const float* norm_weight;  // of untied features, or null
  LinearAttentionSums sums;
  float* y;  // row
};

// Where a key head has its keys: `limit` places from `first` on. A new key has first_score.
struct KeyHeadPlace {
  int32_t limit, first;
  float first_score;
};

// hybrid_attention_step, after place_heads; or softmax attention, of which no key leaves.
struct HybridStage {
  AttentionStage attention;  // the features, if there are any, as they are there
  const int32_t*
      pairs;  // [heads + 1]: of every query head the first row of its directions; or null
  const KeyHeadPlace* places;  // [heads / group]
  void *keys, *values;         // bf16
  float* score;
  int32_t block, sinks, recent;
  int32_t most_pairs, most_states;  // of a key head: its directions, and its features
  float decay, scale;
  bool evicts, by_score;
};

struct Stage {
  enum class Kind : int32_t { kEmbed, kProduct, kAttention, kHybrid } kind;
  union {
    EmbedStage embed;
    ProductStage product;
    AttentionStage attention;
    HybridStage hybrid;
  };
};

struct StageList {
  const Stage* stages;
  int32_t count;
  int32_t widest_head;
  int32_t most_warp_inputs;  // of all products
  bool untied;               // whether features are, in all stages of attention
  bool hybrid, evicts;  // whether some attention has a cache of keys, and whether keys leave it
  // Of caches the most of each:
  int32_t most_keys, most_group, most_block, most_pairs, most_states;
};

// Divides a product among blocks and warps; false where it does not fit. Inputs are whole packs of
// eight.
bool share_out(ProductStage& product, int blocks);

// The blocks of a launch; 0 where the current device has no such kernel.
int stage_list_blocks();

// Whether shared memory is large enough for the stages.
bool stage_list_fits(const StageList& list);

// `tag` is 1, 0, 1, … from one launch to the next.
cudaError_t launch_stage_list(const StageList& list, int64_t id, int64_t position, uint32_t tag,
                              cudaStream_t stream);

}  // namespace dofla::cuda
