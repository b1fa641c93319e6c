// The pair kernel's block. For a tile of 64 queries × 64 keys a block computes the teacher's logits
// q·k, the products S = Σ_m F_im G_jm of query and key factors, and from both the weights
// Y = ∂loss / ∂log K̂ / S, which the gradients are sums of. Losses of normalised rows pass over the
// keys twice, first for the sums of each row.
#pragma once

#include "dofla/ops/cuda/feature_loss_gradient.cuh"
#include "dofla/ops/cuda/feature_loss_items.cuh"
#include "dofla/ops/cuda/feature_loss_row_sums.cuh"

namespace dofla::cuda::feature_pairs {

template <PairLoss kLoss, bool kUntied, class PairTilesType>
struct PairBlock {
  using Tiles = PairTilesType;
  using Tile = typename Tiles::Tile;
  static constexpr int kBlocks = Tiles::kBlocks, kRounds = Tiles::kRounds;
  static constexpr bool kNormalised = kLoss != PairLoss::kL2;

  Tiles at;
  GradientSums<Tiles, kUntied> gradient;
  double loss;
  RowTerms rows[2];
  RowSums<kLoss, Tiles> sums_of_rows;
  float query_peak[2];                                // l2
  float log_scale, largest_teacher, largest_student;  // l2
  bool needs_scale;
  bool is_padding[2], any_padding;  // l2: rows that count for nothing; whether the warp has any

  __device__ PairBlock(const PairTask& task, PairState& state) : at(task, state) {}

  __device__ __forceinline__ float block_max(float x) const {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    if (at.lane == 0) at.state.largest[at.warp] = x;
    __syncthreads();
    x = at.state.largest[0];
#pragma unroll
    for (int w = 1; w < Tiles::kWarps; ++w) x = fmaxf(x, at.state.largest[w]);
    __syncthreads();
    return x;
  }

  // The l2 scale that the pairs ask for.
  __device__ __forceinline__ float wanted_scale(const Tile& teacher, const Tile& product,
                                                int stage) const {
    const auto of_student = [&](int r, float log_product) {
      return log_product + query_peak[r] - 2 * kLift - kHeadroom;
    };
    uint32_t vanished = 0;
    if (any_vanished(product))
      vanished = resolve_vanished(
          at, teacher, product, stage, false,
          [&](int r, float, float bound) { return of_student(r, bound) > log_scale - kMargin; });
    const float scale = at.teacher_scale();
    float wanted = kNothing;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const float2 peaks = at.peaks_of(n, stage);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (product[n][e] < 0) continue;
        wanted = fmaxf(wanted, scale * teacher[n][e]);
        if (product[n][e] < kSmallestProduct) continue;
        wanted = fmaxf(
            wanted, of_student(e / 2, fast_log2(product[n][e]) + (e % 2 == 0 ? peaks.x : peaks.y)));
      }
    }
    for_each_vanished(at, vanished, [&](int bit, const float2& pair) {
      const float log_product = pair.y + at.state.key_peaks[stage][at.key_of(bit)];
      wanted =
          fmaxf(wanted, bit / 2 % 2 == 0 ? of_student(0, log_product) : of_student(1, log_product));
    });
    return wanted;
  }

  // Raises the l2 scale to the largest that a pair of the block asks for, and rescales all sums.
  __device__ __forceinline__ void raise_scale(float wanted) {
    const float raised = fmaxf(log_scale, block_max(wanted) + kMargin);
    const float down = fast_exp2(log_scale - raised);
    log_scale = raised;
    largest_student *= down;
    loss *= down * down;
    gradient.multiply_by(down * down);
  }

  // Writes weights to shared memory. A tile without masked or vanished pairs is spared the tests.
  __device__ __forceinline__ void weigh(const Tile& teacher, const Tile& product, int stage,
                                        PairSums& sums) {
    if constexpr (!kNormalised) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        rows[r] = {log_scale, query_peak[r] - 2 * kLift - log_scale, 0.0f};
    }
    const bool vanished = any_vanished(product), excluded = !kNormalised && any_padding;
    if (!vanished && !excluded && !at.at_edge()) {
      store_weights<true>(teacher, product, stage, sums);
      return;
    }
    store_weights<false>(teacher, product, stage, sums);
    if (!vanished) return;
    const float scale = at.teacher_scale();
    const auto needed = [&](int r, float qk, float bound) {
      return qk * scale - rows[r].teacher > kNegligible || bound + rows[r].student > kNegligible;
    };
    const uint32_t bits = resolve_vanished(at, teacher, product, stage, true, needed);
    for_each_vanished(at, bits, [&](int bit, float2& pair) {
      const RowTerms row = bit / 2 % 2 == 0 ? rows[0] : rows[1];
      const float shift = at.state.key_peaks[stage][at.key_of(bit)] + row.student + pair.y;
      pair.x = pair_weight<kLoss>(pair.x, scale, 1.0f, shift, row, sums);
    });
  }

  template <bool kAllCount>
  __device__ __forceinline__ void store_weights(const Tile& teacher, const Tile& product, int stage,
                                                PairSums& sums) const {
    const float scale = at.teacher_scale();
    const uint32_t to = gradient.weights_at(at);
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const float2 peaks = at.peaks_of(n, stage);
      float y[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const RowTerms& row = rows[e / 2];
        y[e] = 0;
        if (kAllCount || !(product[n][e] < kSmallestProduct))
          y[e] = pair_weight<kLoss>(teacher[n][e], scale, product[n][e],
                                    (e % 2 == 0 ? peaks.x : peaks.y) + row.student, row, sums);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r)
        gradient.store_weights((to ^ 16 * n) + 1024 * r, y[2 * r], y[2 * r + 1]);
    }
  }

  // The barrier after a tile's weights. Returns false if the l2 scale is too small for them: the
  // tile has to be computed again.
  __device__ __forceinline__ bool accept(const PairSums& sums, bool measured) {
    if constexpr (!kNormalised) {
      const float teacher = at.teacher_scale() * sums.largest_qk;
      const bool over = at.plan.sequence_scale && !measured &&
                        (teacher > log_scale + kMostTeacher || sums.largest_student > kMostStudent);
      needs_scale = __syncthreads_or(over);
      if (needs_scale) {
        clear_vanished(at);
        return false;
      }
      largest_teacher = fmaxf(largest_teacher, teacher);
      largest_student = fmaxf(largest_student, sums.largest_student);
    } else {
      __syncthreads();
    }
    add_loss(sums);
    return true;
  }

  __device__ __forceinline__ void add_loss(const PairSums& sums) {
    loss += kLoss == PairLoss::kSoftmax ? kLn2 * sums.loss : sums.loss;
  }

  // The rows' statistics are complete.
  __device__ __forceinline__ void finish_sums() {
    sums_of_rows.finish(at, rows);
    PairSums of_rest;
    sums_of_rows.add_rest(at, rows, of_rest);
    add_loss(of_rest);
  }

  // Rows of padding are masked where no normaliser makes their pairs vanish.
  __device__ __forceinline__ void mask_padding(Tile& product) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (is_padding[e / 2]) product[n][e] = -1;
  }

  // Computes the weights of a tile of pairs. False if they have to be computed again.
  __device__ __forceinline__ bool compute_weights(int stage) {
    const bool measure = !kNormalised && needs_scale;
    float wanted = kNothing;
    PairSums sums;
    at.for_each_round(measure ? -kRounds : 0, [&](int round) {
      Tile teacher, product;
      at.multiply_teacher(teacher, stage);
      at.multiply_student(product, stage);
      if (at.at_edge()) at.mask(product, -1);
      if (!kNormalised && any_padding) mask_padding(product);
      if (kNormalised || round >= 0) {
        weigh(teacher, product, stage, sums);
        return;
      }
      wanted = fmaxf(wanted, wanted_scale(teacher, product, stage));
      if (round == -1) raise_scale(wanted);
    });
    return accept(sums, measure);
  }

  // A tile of queries with all its keys: one pass or two.
  __device__ __forceinline__ void run_rows() {
    const int key_tiles = at.plan.causal ? at.row_tile + 1 : at.plan.tiles;
    const int first_pass = kNormalised ? key_tiles : 0, steps = first_pass + key_tiles;
    const auto tile_of = [&](int step) { return step < first_pass ? step : step - first_pass; };
    const auto fetch = [&](int step, int stage) {
      at.fetch_keys(tile_of(step), stage,
                    step >= first_pass || sums_of_rows.student_counts(at, step));
      commit_copies();
    };
    gradient.start_rows();
    if constexpr (kNormalised) {
      sums_of_rows.start(at);
    } else {
      for (int r = 0; r < 2; ++r) {
        query_peak[r] = at.row_value(at.task.work.side[0].peaks, r);
        is_padding[r] = at.is_padding(r);
      }
      any_padding = __any_sync(0xffffffffu, is_padding[0] || is_padding[1]);
    }
    __syncthreads();
    at.fetch_queries();
    fetch(0, 0);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      at.key_tile = tile_of(step);
      const int stage = at.task.stages == 2 ? step & 1 : 0;
      if (at.task.stages == 1 && step > 0) {
        __syncthreads();
        fetch(step, 0);
      }
      wait_for_copies<0>();
      __syncthreads();
      if (at.task.stages == 2 && step + 1 < steps) fetch(step + 1, stage ^ 1);
      if (step < first_pass) {
        sums_of_rows.add_tile(at, stage);
        if (step == first_pass - 1) finish_sums();
        continue;
      }
      while (!compute_weights(stage)) continue;
      gradient.add_tile(at, stage);
    }
    gradient.add_queries_to_z(at);
  }

  __device__ __forceinline__ void run_item() {
    gradient.start_item(at);
    loss = 0;
    needs_scale = false;
    log_scale = 0;
    if (!kNormalised && at.plan.sequence_scale)
      log_scale = kMargin + at.task.work.some_logits[at.item.b * at.plan.heads + at.item.h];
    largest_teacher = kNothing;
    largest_student = 0;
    const int mirror = at.plan.tiles - 1 - at.item.row_tile;
#pragma unroll 1
    for (at.row_tile = at.item.row_tile;; at.row_tile = mirror) {
      run_rows();
      if (at.row_tile == mirror) break;
    }
    gradient.write(at);
    write_result();
  }

  __device__ __forceinline__ void write_result() {
    const float wanted =
        kNormalised
            ? 0.0f
            : block_max(fmaxf(largest_teacher, fast_log2(largest_student) + log_scale - kHeadroom));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) loss += __shfl_xor_sync(0xffffffffu, loss, step);
    if (at.lane == 0) at.state.losses[at.warp] = loss;
    __syncthreads();
    if (threadIdx.x != 0) return;
    double sum = 0;
    for (int w = 0; w < Tiles::kWarps; ++w) sum += at.state.losses[w];
    at.task.work.results[at.task.first_item + at.state.number] = {
        sum, log_scale, at.plan.sequence_scale ? wanted : 0.0f};
  }

  __device__ __forceinline__ void run() {
    clear_vanished(at);
    for (;;) {
      __syncthreads();
      if (threadIdx.x == 0) {
        at.state.number = atomicAdd(at.task.next_item, 1);
        if (at.state.number < at.task.item_count) at.state.item = item_of(at.task, at.state.number);
      }
      __syncthreads();
      if (at.state.number >= at.task.item_count) return;
      run_item();
    }
  }
};

}  // namespace dofla::cuda::feature_pairs
