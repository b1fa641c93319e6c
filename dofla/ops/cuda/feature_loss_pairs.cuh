// The kernel over pairs. For a tile of 64 queries × 64 keys a block computes the teacher's logits
// q·k, the products S = Σ_m F_im G_jm of query and key factors, and from both the weights
// Y = ∂loss / ∂log K̂ / S. Gradients of log features are then
//   query i: F_im Σ_j Y_ij G_jm       key j: G_jm Σ_i Y_ij F_im
// and z_m gets their products with q_i and k_j. Of the queries' sums, a tile of queries keeps its
// own until all keys are seen; the keys' sums go to z_m tile by tile, so that nothing is shared
// between blocks. The softmax and attention-mse losses see the keys twice: first for the sums of
// each row.
#pragma once

#include "dofla/ops/cuda/feature_loss_objective.cuh"
#include "dofla/ops/cuda/feature_loss_plan.h"
#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/swizzled_tile.cuh"

namespace dofla::cuda::feature_pairs {

// How many turns a warp takes for the keys of its tile: wide heads leave fewer registers for pairs.
template <int kWidth, int kGroups>
constexpr int kKeyTurns = kWidth == 128 && kGroups == 1 ? 2 : 1;

// The lanes of a warp hold rows g and g + 8 (g = lane / 4) of 16, and columns 2c and 2c + 1
// (c = lane % 4) of every 8. kGroups times 4 warps: warp w has queries 16 (w % 4).. of the tile,
// its share w / 4 of the keys, and the sums of features 64 (w / 4).. of its queries.
template <PairLoss kLoss, int kParts, int kWidth, int kGroups>
struct PairBlock {
  static constexpr int kWarps = 4 * kGroups, kThreads = 32 * kWarps;
  static constexpr int kTurns = kKeyTurns<kWidth, kGroups>;
  static constexpr int kBlocks = 8 / kGroups / kTurns;  // of 8 keys
  static_assert(kBlocks % 4 == 0);
  static constexpr bool kNormalised = kLoss != PairLoss::kL2;
  // Shared memory: queries, query factors, weights, then for each stage keys and key factors.
  static constexpr uint32_t kXPart = kWidth / kTile * kTileBytes, kX = kParts * kXPart;
  static constexpr uint32_t kFactorPart = kGroups * kTileBytes;
  static constexpr uint32_t kFactors = kFactorPlanes * kFactorPart;
  static constexpr uint32_t kWeights = kX + kFactors;
  static constexpr uint32_t kFirstStage = kWeights + 2 * kTileBytes, kStage = kX + kFactors;

  using Tile = float[kBlocks][4];  // 16 queries × 8 kBlocks keys

  const PairTask& task;
  PairState& state;
  const Plan& plan;
  const Item& item;
  const float teacher_scale;

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, c = lane % 4, group = warp / 4, row16 = warp % 4 * 16;
  int owned, half_begin, half_end;  // the 16 features whose z this warp sums, over which keys
  int row_tile, key_tile, first_key;

  float by_query[8][4];       // 16 queries × 64 features: Σ_j Y_ij G_jm
  float to_z[kWidth / 8][4];  // 16 features × kWidth
  float to_alpha[2];
  double loss;
  RowTerms rows[2];
  RowStatistics<kLoss> statistics[2];
  float query_peak[2];  // l2
  float log_scale, largest_teacher, largest_student;
  bool needs_scale;

  __device__ PairBlock(const PairTask& pair_task, PairState& shared_state)
      : task(pair_task),
        state(shared_state),
        plan(pair_task.plan),
        item(shared_state.item),
        teacher_scale(kLog2E / sqrtf(static_cast<float>(pair_task.plan.width))) {}

  __device__ __forceinline__ uint32_t stage_at(int stage) const {
    return kFirstStage + static_cast<uint32_t>(stage) * kStage;
  }
  __device__ __forceinline__ const float* logs(int side, int token) const {
    return task.work.side[side].logs + item.feature_row + int64_t{token} * item.head.padded;
  }
  // A pair that is computed from logarithms: its logit, later its Y, and the log₂ of its product.
  __device__ __forceinline__ float2& pair_at(int row, int key) const {
    return task.work.pairs[(int64_t{blockIdx.x} * kTile + row) * kTile + key];
  }
  __device__ __forceinline__ int row_of(int bit) const { return row16 + g + bit / 2 % 2 * 8; }
  __device__ __forceinline__ int key_of(int bit) const {
    return first_key + bit / 4 * 8 + 2 * c + bit % 2;
  }

  // Queries (side 0) or keys (side 1) of a tile, and their factors.
  __device__ __forceinline__ void fetch_side(int side, int tile, uint32_t to) const {
    const Side& from = task.work.side[side];
    const int token = tile * kTile, count = min(kTile, plan.tokens - token);
    const int64_t x_row =
        (int64_t{item.b} * from.x_heads + item.h / (plan.heads / from.x_heads)) * plan.tokens +
        token;
#pragma unroll
    for (int p = 0; p < kParts; ++p)
#pragma unroll
      for (int t = 0; t < kWidth / kTile; ++t)
        copy_tile<kThreads>(to + p * kXPart + t * kTileBytes,
                            from.x.data + p * from.x.part_step + x_row * kWidth + t * kTile, kWidth,
                            count, min(8, 2 * plan.width16() - 8 * t));
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
      fetch_factors(side, tile, item.window_first + i * kTile, min(4, item.blocks16 - 4 * i),
                    to + kX + i * kTileBytes, kFactorPart);
  }

  __device__ __forceinline__ void fetch_factors(int side, int tile, int feature, int columns16,
                                                uint32_t to, uint32_t part_step) const {
    const int token = tile * kTile;
    const __nv_bfloat16* from = task.work.side[side].factors + item.feature_row +
                                int64_t{token} * item.head.padded + feature;
#pragma unroll
    for (int p = 0; p < kFactorPlanes; ++p)
      copy_tile<kThreads>(to + p * part_step, from + p * plan.plane_step(), item.head.padded,
                          min(kTile, plan.tokens - token), 2 * columns16);
  }

  __device__ __forceinline__ void fetch_keys(int tile, int stage) const {
    fetch_side(1, tile, stage_at(stage));
    const int token = tile * kTile + threadIdx.x;
    if (threadIdx.x < kTile) {
      const float* from =
          task.work.side[1].peaks + (int64_t{item.b} * plan.heads + item.h) * plan.tokens;
      const bool valid = token < plan.tokens;
      copy_4_bytes(&state.key_peaks[stage][threadIdx.x], from + (valid ? token : 0), valid);
    }
  }

  // Teacher's logits (before teacher_scale) and products of the tile. A masked product is -1.
  __device__ __forceinline__ void products(Tile& teacher, Tile& product, int stage) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) teacher[n][e] = product[n][e] = 0;
    const uint32_t keys = stage_at(stage);
    multiply_rows<kParts, kParts>(teacher, TileParts{0, kXPart}, row16, TileParts{keys, kXPart},
                                  first_key, sideways(), plan.width16());
    multiply_rows<kFactorPlanes, kFactorPlanes>(product, TileParts{kX, kFactorPart}, row16,
                                                TileParts{keys + kX, kFactorPart}, first_key,
                                                sideways(), min(4, item.blocks16));
    if (kGroups == 2 && item.blocks16 > 4)
      multiply_rows<kFactorPlanes, kFactorPlanes>(
          product, TileParts{kX + kTileBytes, kFactorPart}, row16,
          TileParts{keys + kX + kTileBytes, kFactorPart}, first_key, sideways(), item.blocks16 - 4);
    if (item.head.padded > item.head.window) add_foreign_products(product);
    if (at_edge()) mask(product);
  }

  // Features of the head outside the window: they belong to K̂, their gradients to other items.
  __device__ __forceinline__ void add_foreign_products(Tile& product) {
    const uint32_t foreign = stage_at(task.stages);
#pragma unroll 1
    for (int feature = 0; feature < item.head.padded; feature += kTile) {
      if (feature >= item.window_first && feature < item.window_first + item.head.window) continue;
      const int columns16 = min(4, (item.head.padded - feature) / 16);
      __syncthreads();
      fetch_factors(0, row_tile, feature, columns16, foreign, kTileBytes);
      fetch_factors(1, key_tile, feature, columns16, foreign + 2 * kTileBytes, kTileBytes);
      commit_copies();
      wait_for_copies<0>();
      __syncthreads();
      multiply_rows<kFactorPlanes, kFactorPlanes>(product, TileParts{foreign, kTileBytes}, row16,
                                                  TileParts{foreign + 2 * kTileBytes, kTileBytes},
                                                  first_key, sideways(), columns16);
    }
  }

  __device__ __forceinline__ bool at_edge() const {
    return (plan.causal && key_tile == row_tile) || (key_tile + 1) * kTile > plan.tokens ||
           (row_tile + 1) * kTile > plan.tokens;
  }

  __device__ __forceinline__ void mask(Tile& product) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int query = row_tile * kTile + row_of(e);
      const int last = query >= plan.tokens ? -1 : plan.causal ? query : plan.tokens - 1;
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
        if (key_tile * kTile + key_of(4 * n + e) > last) product[n][e] = -1;
    }
  }

  // Pairs of this warp whose product vanished: writes their logits and log₂ products to pair_at and
  // returns a bit for each that is this lane's.
  __device__ __forceinline__ uint32_t resolve_vanished(const Tile& teacher, const Tile& product,
                                                       bool note) {
    float least = 1;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) least = fminf(least, fabsf(product[n][e]));
    if (!__any_sync(0xffffffffu, least < kSmallestProduct)) return 0;
    uint32_t mine = 0;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (!(fabsf(product[n][e]) < kSmallestProduct)) continue;
        mine |= 1u << (4 * n + e);
        pair_at(row_of(e), key_of(4 * n + e)).x = teacher[n][e] * teacher_scale;
      }
    }
#pragma unroll 1
    for (int bit = 0; bit < 4 * kBlocks; ++bit) {
      uint32_t todo = __ballot_sync(0xffffffffu, mine >> bit & 1);
      while (todo != 0) {
        const int source = __ffs(static_cast<int>(todo)) - 1;
        todo &= todo - 1;
        const int row = __shfl_sync(0xffffffffu, row_of(bit), source);
        const int key = __shfl_sync(0xffffffffu, key_of(bit), source);
        const float log_product =
            log_sum(logs(0, row_tile * kTile + row), logs(1, key_tile * kTile + key)) + 2 * kLift;
        if (lane != source) continue;
        pair_at(row, key).y = log_product;
        if (note) {
          atomicOr(&state.row_mask[row], 1ull << key);
          atomicOr(&state.column_mask[key], 1ull << row);
          state.vanished = 1;
        }
      }
    }
    return mine;
  }

  // log₂ Σ_m 2^(x_m + y_m), by a whole warp.
  __device__ __forceinline__ float log_sum(const float* x, const float* y) const {
    float top = kMasked, sum = 0;
    for (int m = lane; m < item.head.count; m += 32) top = fmaxf(top, x[m] + y[m]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    for (int m = lane; m < item.head.count; m += 32) sum += fast_exp2(x[m] + y[m] - top);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return top + fast_log2(sum);
  }

  // Adds the tile to the statistics of its rows. Overwrites it.
  __device__ __forceinline__ void add_statistics(Tile& teacher, Tile& product, uint32_t vanished,
                                                 int stage) {
    float top[2] = {statistics[0].top, statistics[1].top};
    float top_hat[2] = {statistics[0].top_hat, statistics[1].top_hat};
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const float2 peaks = peaks_of(n, stage);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float s = product[n][e];
        const bool active = !(s < kSmallestProduct);
        teacher[n][e] = active ? teacher[n][e] * teacher_scale : kMasked;
        product[n][e] = active ? fast_log2(s) + (e % 2 == 0 ? peaks.x : peaks.y) : kMasked;
        top[e / 2] = fmaxf(top[e / 2], teacher[n][e]);
        top_hat[e / 2] = fmaxf(top_hat[e / 2], product[n][e]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      statistics[r].raise(top[r], top_hat[r]);
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) statistics[r].add(teacher[n][e], product[n][e]);
    }
#pragma unroll 1
    for (; vanished != 0; vanished &= vanished - 1) {
      const int bit = __ffs(static_cast<int>(vanished)) - 1;
      const float2 pair = pair_at(row_of(bit), key_of(bit));
      const float s = pair.y + state.key_peaks[stage][key_of(bit)];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (bit / 2 % 2 != r) continue;
        statistics[r].raise(fmaxf(statistics[r].top, pair.x), fmaxf(statistics[r].top_hat, s));
        statistics[r].add(pair.x, s);
      }
    }
  }

  __device__ __forceinline__ float2 peaks_of(int n, int stage) const {
    return *reinterpret_cast<const float2*>(&state.key_peaks[stage][first_key + 8 * n + 2 * c]);
  }

  // The statistics of whole rows; softmax takes its loss from them.
  __device__ __forceinline__ void finish_statistics() {
#pragma unroll
    for (int r = 0; r < 2; ++r) statistics[r].merge_quad();
    if constexpr (kGroups == 2) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (c == 0)
          *reinterpret_cast<RowStatistics<kLoss>*>(state.row_statistics[group][row16 + g + 8 * r]) =
              statistics[r];
      __syncthreads();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const auto of_group = [&](int i) {
          return *reinterpret_cast<const RowStatistics<kLoss>*>(
              state.row_statistics[i][row16 + g + 8 * r]);
        };
        statistics[r] = of_group(0);
        statistics[r].merge(of_group(1));
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows[r] = statistics[r].terms();
      const bool counts =
          c == 0 && group == 0 && row_tile * kTile + row16 + g + 8 * r < plan.tokens;
      if (kLoss == PairLoss::kSoftmax && counts) loss += statistics[r].cross_entropy();
    }
  }

  __device__ __forceinline__ float block_max(float x) const {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    if (lane == 0) state.largest[warp] = x;
    __syncthreads();
    x = state.largest[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) x = fmaxf(x, state.largest[w]);
    __syncthreads();
    return x;
  }

  // The l2 scale that the pairs ask for.
  __device__ __forceinline__ float wanted_scale(const Tile& teacher, const Tile& product,
                                                uint32_t vanished, int stage) const {
    float wanted = kNothing;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const float2 peaks = peaks_of(n, stage);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (product[n][e] < kSmallestProduct) continue;
        const float log_student = fast_log2(product[n][e]) + (e % 2 == 0 ? peaks.x : peaks.y) +
                                  query_peak[e / 2] - 2 * kLift;
        wanted = fmaxf(wanted, fmaxf(teacher[n][e] * teacher_scale, log_student - kHeadroom));
      }
    }
#pragma unroll 1
    for (; vanished != 0; vanished &= vanished - 1) {
      const int bit = __ffs(static_cast<int>(vanished)) - 1;
      const float2 pair = pair_at(row_of(bit), key_of(bit));
      const float log_student = pair.y + state.key_peaks[stage][key_of(bit)] +
                                (bit / 2 % 2 == 0 ? query_peak[0] : query_peak[1]) - 2 * kLift;
      wanted = fmaxf(wanted, fmaxf(pair.x, log_student - kHeadroom));
    }
    return wanted;
  }

  // Raises the l2 scale to what any of the block's pairs asks for, and brings all sums to it.
  __device__ __forceinline__ void raise_scale(float wanted) {
    const float raised = fmaxf(log_scale, block_max(wanted) + kMargin);
    const float down = fast_exp2(log_scale - raised), down2 = down * down;
    log_scale = raised;
    largest_student *= down;
    loss *= down2;
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) by_query[i][e] *= down2;
#pragma unroll
    for (int i = 0; i < kWidth / 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) to_z[i][e] *= down2;
    to_alpha[0] *= down2;
    to_alpha[1] *= down2;
  }

  // Writes weights to shared memory.
  __device__ __forceinline__ void weigh(const Tile& teacher, const Tile& product, uint32_t vanished,
                                        int stage, PairSums& sums) {
    if constexpr (!kNormalised) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        rows[r] = {log_scale, query_peak[r] - 2 * kLift - log_scale, 0.0f};
    }
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const float2 peaks = peaks_of(n, stage);
      float y[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const RowTerms& row = rows[e / 2];
        y[e] = pair_weight<kLoss>(teacher[n][e] * teacher_scale, product[n][e],
                                  (e % 2 == 0 ? peaks.x : peaks.y) + row.student,
                                  !(product[n][e] < kSmallestProduct), row, sums);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) store_weights(row16 + g + 8 * r, n, y[2 * r], y[2 * r + 1]);
    }
#pragma unroll 1
    for (; vanished != 0; vanished &= vanished - 1) {
      const int bit = __ffs(static_cast<int>(vanished)) - 1;
      float2& pair = pair_at(row_of(bit), key_of(bit));
      const RowTerms row = bit / 2 % 2 == 0 ? rows[0] : rows[1];
      pair.x = pair_weight<kLoss>(pair.x, 1.0f,
                                  state.key_peaks[stage][key_of(bit)] + row.student + pair.y, true,
                                  row, sums);
    }
  }

  // The barrier after a tile's weights. Returns false if the l2 scale is too small for them: the
  // tile is to be taken again.
  __device__ __forceinline__ bool settle(const PairSums& sums, bool measured) {
    if constexpr (!kNormalised) {
      const bool over =
          plan.sequence_scale && !measured &&
          (sums.largest_teacher > log_scale + kMostTeacher || sums.largest_student > kMostStudent);
      needs_scale = __syncthreads_or(over);
      if (needs_scale) return false;
      largest_teacher = fmaxf(largest_teacher, sums.largest_teacher);
      largest_student = fmaxf(largest_student, sums.largest_student);
    } else {
      __syncthreads();
    }
    loss += sums.loss;
    return true;
  }

  // A tile of pairs, kTurns times fewer keys at a time. True when it is settled.
  __device__ __forceinline__ bool take_pairs(int stage, bool first_pass) {
    const bool measure = !kNormalised && needs_scale;
    float wanted = kNothing;
    PairSums sums;
#pragma unroll 1
    for (int turn = measure ? -kTurns : 0; turn < kTurns; ++turn) {
      first_key = group * (kTile / kGroups) + (turn + kTurns) % kTurns * 8 * kBlocks;
      Tile teacher, product;
      products(teacher, product, stage);
      const uint32_t vanished = resolve_vanished(teacher, product, !first_pass);
      if (kNormalised && first_pass) {
        add_statistics(teacher, product, vanished, stage);
      } else if (!kNormalised && turn < 0) {
        wanted = fmaxf(wanted, wanted_scale(teacher, product, vanished, stage));
        if (turn == -1) raise_scale(wanted);
      } else {
        weigh(teacher, product, vanished, stage, sums);
      }
    }
    return first_pass || settle(sums, measure);
  }

  __device__ __forceinline__ void store_weights(int row, int n, float first, float second) const {
    uint32_t parts[2];
    split(first, second, parts);
#pragma unroll
    for (int p = 0; p < 2; ++p)
      *reinterpret_cast<uint32_t*>(
          tile_at(kWeights + p * kTileBytes, row, first_key + 8 * n + 2 * c)) = parts[p];
  }

  // z_m += Σ_i p_mi x_i over 16 rows x_i. Of p, a lane holds features g and g + 8 in turn, two
  // neighbouring rows each, then the same 8 rows on.
  __device__ __forceinline__ void add_to_z(const float (&p)[8], uint32_t x, int row) {
    to_alpha[0] += (p[0] + p[1]) + (p[4] + p[5]);
    to_alpha[1] += (p[2] + p[3]) + (p[6] + p[7]);
    uint32_t left[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t parts[2];
      split(p[2 * i], p[2 * i + 1], parts);
      left[0][i] = parts[0];
      left[1][i] = parts[1];
    }
    multiply_columns<2, kParts == 1 ? 1 : 2>(to_z, left, TileParts{x, kXPart}, row, plan.width16());
  }

  // What the weights in shared memory say about features: the queries' sums, and z by the keys.
  __device__ __forceinline__ void add_gradients(int stage) {
    const uint32_t keys = stage_at(stage), factors = keys + kX;
#pragma unroll
    for (int k16 = 0; k16 < 4; ++k16) {
      uint32_t left[2][4];
#pragma unroll
      for (int p = 0; p < 2; ++p)
        load_matrices(left[p], block_at(kWeights + p * kTileBytes, upright(), row16, k16));
      multiply_columns<2, 2>(by_query, left, TileParts{factors + group * kTileBytes, kFactorPart},
                             16 * k16, item.blocks16 - 4 * group);
    }
    const bool vanished = state.vanished != 0;
#pragma unroll 1
    for (int half = half_begin; half < half_end; ++half) add_keys_to_z(keys, half, vanished);
    if (vanished) {
      __syncthreads();
      if (threadIdx.x < kTile) state.row_mask[threadIdx.x] = state.column_mask[threadIdx.x] = 0;
      if (threadIdx.x == 0) state.vanished = 0;
    }
  }

  __device__ __forceinline__ uint32_t owned_tile(uint32_t factors) const {
    return factors + owned / 4 * kTileBytes;
  }

  // 32 keys, and for vanished pairs 32 queries.
  __device__ __forceinline__ void add_keys_to_z(uint32_t keys, int half, bool vanished) {
    float sums[4][4] = {};
#pragma unroll
    for (int i16 = 0; i16 < 4; ++i16) {
      uint32_t left[2][4], right[2][2][4];
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        load_matrices_transposed(
            left[p], block_at(owned_tile(kX) + p * kFactorPart, sideways(), 16 * i16, owned % 4));
#pragma unroll
        for (int i = 0; i < 2; ++i)
          load_matrices_transposed(
              right[p][i], block_at(kWeights + p * kTileBytes, upright(), 16 * i16, 2 * half + i));
      }
      multiply_parts(sums, 0, left, right);
    }
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const int first = 16 * (2 * half + s);
      float p[8];
      load_values(owned_tile(keys + kX), kFactorPart, first, p);
#pragma unroll
      for (int i = 0; i < 8; ++i) p[i] *= sums[2 * s + i / 4][i % 4];
      if (vanished) add_vanished(1, first, p);
      add_to_z(p, keys, first);
    }
    if (!vanished) return;
#pragma unroll 1
    for (int s = 0; s < 2; ++s) {
      const int first = 16 * (2 * half + s);
      float p[8] = {};
      add_vanished(0, first, p);
      add_to_z(p, 0, first);
    }
  }

  // Rows first.. of the owned features, from two bf16 parts and in the order of add_to_z.
  __device__ __forceinline__ void load_values(uint32_t tile, uint32_t part_step, int first,
                                              float (&p)[8]) const {
    uint32_t high[4], low[4];
    load_matrices_transposed(high, block_at(tile, sideways(), first, owned % 4));
    load_matrices_transposed(low, block_at(tile + part_step, sideways(), first, owned % 4));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 a = unpack_bf16(high[i]), r = unpack_bf16(low[i]);
      p[2 * i] = a.x + r.x;
      p[2 * i + 1] = a.y + r.y;
    }
  }

  // The gradients of log features from pairs computed from logarithms: Y · share of the feature.
  __device__ __forceinline__ void add_vanished(int side, int first, float (&p)[8]) const {
    const float* mine = logs(side, (side == 0 ? row_tile : key_tile) * kTile) + item.window_first;
    const float* theirs =
        logs(1 - side, (side == 0 ? key_tile : row_tile) * kTile) + item.window_first;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int m = 16 * owned + g + i / 2 % 2 * 8, row = first + 2 * c + i % 2 + i / 4 * 8;
      unsigned long long todo = side == 0 ? state.row_mask[row] : state.column_mask[row];
#pragma unroll 1
      for (; todo != 0; todo &= todo - 1) {
        const int other = __ffsll(static_cast<long long>(todo)) - 1;
        const float2 pair = side == 0 ? pair_at(row, other) : pair_at(other, row);
        p[i] +=
            pair.x * fast_exp2(mine[int64_t{row} * item.head.padded + m] +
                               theirs[int64_t{other} * item.head.padded + m] + 2 * kLift - pair.y);
      }
    }
  }

  // All keys are seen: the queries' sums go to z, through the weights' place in shared memory.
  __device__ __forceinline__ void add_queries_to_z() {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      __syncthreads();
      if (group == i) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          if (n / 2 >= item.blocks16 - 4 * i) continue;
#pragma unroll
          for (int r = 0; r < 2; ++r) store_query_gradient(kX + i * kTileBytes, n, r);
        }
      }
      __syncthreads();
      if (owned / 4 != i) continue;
#pragma unroll 1
      for (int q16 = 2 * half_begin; q16 < 2 * half_end; ++q16) {
        float p[8];
        load_values(kWeights, kTileBytes, 16 * q16, p);
        add_to_z(p, 0, 16 * q16);
      }
    }
  }

  __device__ __forceinline__ void store_query_gradient(uint32_t factors, int n, int r) const {
    const int row = row16 + g + 8 * r, column = 8 * n + 2 * c;
    const auto factor = [&](int part) {
      return unpack_bf16(
          *reinterpret_cast<const uint32_t*>(tile_at(factors + part * kFactorPart, row, column)));
    };
    const float2 high = factor(0), low = factor(1);
    uint32_t parts[2];
    split((high.x + low.x) * by_query[n][2 * r], (high.y + low.y) * by_query[n][2 * r + 1], parts);
#pragma unroll
    for (int p = 0; p < 2; ++p)
      *reinterpret_cast<uint32_t*>(tile_at(kWeights + p * kTileBytes, row, column)) = parts[p];
  }

  __device__ __forceinline__ void run_rows() {
    const int key_tiles = plan.causal ? row_tile + 1 : plan.tiles;
    const int steps = kNormalised ? 2 * key_tiles : key_tiles;
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) by_query[i][e] = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      statistics[r] = {};
      const int query = min(row_tile * kTile + row16 + g + 8 * r, plan.tokens - 1);
      query_peak[r] =
          kNormalised ? 0.0f
                      : task.work.side[0]
                            .peaks[(int64_t{item.b} * plan.heads + item.h) * plan.tokens + query];
    }
    __syncthreads();
    fetch_side(0, row_tile, 0);
    fetch_keys(0, 0);
    commit_copies();
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      key_tile = step < key_tiles ? step : step - key_tiles;
      const int stage = task.stages == 2 ? step & 1 : 0;
      if (task.stages == 1 && step > 0) {
        __syncthreads();
        fetch_keys(key_tile, 0);
        commit_copies();
      }
      wait_for_copies<0>();
      __syncthreads();
      if (task.stages == 2 && step + 1 < steps) {
        fetch_keys(step + 1 < key_tiles ? step + 1 : step + 1 - key_tiles, stage ^ 1);
        commit_copies();
      }
      const bool first_pass = kNormalised && step < key_tiles;
      while (!take_pairs(stage, first_pass)) continue;
      if (!first_pass)
        add_gradients(stage);
      else if (step == key_tiles - 1)
        finish_statistics();
    }
    add_queries_to_z();
  }

  // By one thread, for all.
  __device__ __forceinline__ void find_item() const {
    const int number = task.first_item + state.number;
    Item found;
    for (found.h = 0;; ++found.h) {
      found.head = task.work.heads[found.h];
      const int items = found.head.windows() * plan.batch * plan.pairs;
      if (number >= found.head.first_item && number < found.head.first_item + items) break;
    }
    const int local = number - found.head.first_item;
    found.row_tile = local % plan.pairs;
    found.b = local / plan.pairs % plan.batch;
    found.window_first = local / plan.pairs / plan.batch * found.head.window;
    found.feature_row =
        (int64_t{found.b} * plan.padded_total + found.head.padded_first) * plan.tokens;
    found.blocks16 = min(found.head.window, found.head.padded - found.window_first) / 16;
    state.item = found;
  }

  // With few blocks of features two warps share one: each takes half of the keys.
  __device__ __forceinline__ void share_features() {
    int owners = 1;
    while (owners < item.blocks16) owners *= 2;
    const int share = warp / owners;
    const bool shared = kWarps / owners >= 2;
    owned = warp % owners;
    half_begin = shared ? share : 0;
    half_end = shared ? share + 1 : 2;
    if (owned >= item.blocks16 || half_end > 2) half_begin = half_end = 2;
  }

  __device__ __forceinline__ void run_item() {
    share_features();
#pragma unroll
    for (int i = 0; i < kWidth / 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) to_z[i][e] = 0;
    to_alpha[0] = to_alpha[1] = 0;
    loss = 0;
    needs_scale = !kNormalised && plan.sequence_scale;
    log_scale = needs_scale ? kNothing : 0.0f;
    largest_teacher = kNothing;
    largest_student = 0;
    const int mirror = plan.tiles - 1 - item.row_tile;
#pragma unroll 1
    for (row_tile = item.row_tile;; row_tile = mirror) {
      run_rows();
      if (row_tile == mirror) break;
    }
    write_gradients();
    write_result();
  }

  __device__ __forceinline__ void write_gradients() {
    const int64_t first = plan.partial_row(task.first_item + state.number) + 16 * owned + g;
#pragma unroll
    for (int r = 0; r < 2; ++r) to_alpha[r] = quad_sum(to_alpha[r]);
#pragma unroll 1
    for (int share = 0; share < 2; ++share) {
      if (share == half_begin) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float* row = task.work.partial_z + (first + 8 * r) * kWidth + 2 * c;
#pragma unroll
          for (int n = 0; n < kWidth / 8; ++n) {
            float2 value = make_float2(to_z[n][2 * r], to_z[n][2 * r + 1]);
            float2* at = reinterpret_cast<float2*>(row + 8 * n);
            if (share == 1) value = make_float2(at->x + value.x, at->y + value.y);
            *at = value;
          }
          float* alpha = task.work.partial_alpha + first + 8 * r;
          if (c == 0) *alpha = share == 1 ? *alpha + to_alpha[r] : to_alpha[r];
        }
      }
      __syncthreads();
    }
  }

  __device__ __forceinline__ void write_result() {
    const float wanted =
        kNormalised
            ? 0.0f
            : block_max(fmaxf(largest_teacher, fast_log2(largest_student) + log_scale - kHeadroom));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) loss += __shfl_xor_sync(0xffffffffu, loss, step);
    if (lane == 0) state.losses[warp] = loss;
    __syncthreads();
    if (threadIdx.x != 0) return;
    double sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += state.losses[w];
    task.work.results[task.first_item + state.number] = {sum, log_scale,
                                                         plan.sequence_scale ? wanted : 0.0f};
  }

  __device__ __forceinline__ void run() {
    if (threadIdx.x < kTile) state.row_mask[threadIdx.x] = state.column_mask[threadIdx.x] = 0;
    if (threadIdx.x == 0) state.vanished = 0;
    for (;;) {
      __syncthreads();
      if (threadIdx.x == 0) {
        state.number = atomicAdd(task.next_item, 1);
        if (state.number < task.item_count) find_item();
      }
      __syncthreads();
      if (state.number >= task.item_count) return;
      run_item();
    }
  }
};

template <PairLoss kLoss, int kParts, int kWidth, int kGroups>
__global__ __launch_bounds__(128 * kGroups, kGroups == 1 ? kNarrowBlocks : 1) void pair_kernel(
    const __grid_constant__ PairTask task, uint32_t state_offset) {
  auto& state = *reinterpret_cast<PairState*>(shared_memory() + state_offset);
  PairBlock<kLoss, kParts, kWidth, kGroups> block(task, state);
  block.run();
}

template <PairLoss kLoss>
cudaError_t launch_pairs(const PairTask& task, const PairLaunch& how, cudaStream_t stream) {
  const auto go = [&](auto kernel) {
    const auto state_offset = static_cast<uint32_t>(how.shared_bytes - sizeof(PairState));
    return launch(kernel, dim3(static_cast<unsigned>(how.blocks)), 128 * how.groups,
                  how.shared_bytes, stream, task, state_offset);
  };
  const auto with_groups = [&](auto one, auto two) { return how.groups == 1 ? go(one) : go(two); };
  if (task.plan.parts == 1)
    return task.plan.kernel_width == 64
               ? with_groups(pair_kernel<kLoss, 1, 64, 1>, pair_kernel<kLoss, 1, 64, 2>)
               : with_groups(pair_kernel<kLoss, 1, 128, 1>, pair_kernel<kLoss, 1, 128, 2>);
  return task.plan.kernel_width == 64
             ? with_groups(pair_kernel<kLoss, 3, 64, 1>, pair_kernel<kLoss, 3, 64, 2>)
             : with_groups(pair_kernel<kLoss, 3, 128, 1>, pair_kernel<kLoss, 3, 128, 2>);
}

}  // namespace dofla::cuda::feature_pairs
