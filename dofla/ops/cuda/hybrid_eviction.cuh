// How keys leave a full cache for the features, by all threads that serve a key head.
#pragma once

#include "dofla/ops/cuda/hybrid_head.cuh"

namespace dofla::cuda {

// Four coordinates of a key or value; those past its width are 0.
__device__ __forceinline__ float4 load_cached(const float* row, int d, int width, bool packed) {
  return load_four(row, d, width, packed);
}
__device__ __forceinline__ float4 load_cached(const __nv_bfloat16* row, int d, int width,
                                              bool packed) {
  if (!packed) return load_token(row, d, width);
  if (d >= width) return {};
  const uint2 words = *reinterpret_cast<const uint2*>(row + d);
  const float2 low = unpack_bf16(words.x), high = unpack_bf16(words.y);
  return make_float4(low.x, low.y, high.x, high.y);
}

// `Team` says how many threads there are and how they meet.
template <class T, int kWidth, class Team>
struct HybridEviction {
  static constexpr int kThreads = Team::kThreads, kLanes = kWidth / 4;
  static constexpr int kTogether = 4;  // keys on their way to the features
  using Round = FeatureRound<kThreads, kLanes, 2>;

  const HybridHead<T>& h;
  const HybridLists& lists;

  __device__ void load_scores() const {
    if (!h.evicts) return;
    auto* score = list_at<float>(lists.score);
    for (int p = threadIdx.x; p <= h.held; p += kThreads)
      score[p] = p == h.held ? h.first_score : h.by_score ? h.score[p] : 0;
  }

  // Of a full cache. A thread rates the keys whose scores it has loaded.
  __device__ void choose() const {
    const Candidates all = candidates_of(h.limit, h.sinks, h.recent);
    const auto* score = list_at<float>(lists.score);
    auto* rated = list_at<uint32_t>(lists.rated);
    auto *found = list_at<int>(lists.found), *moved = list_at<int>(lists.moved);
    for (int p = threadIdx.x; p < in_fours(h.limit); p += kThreads)
      rated[p] = rate(p < h.limit ? score[p] : 0, p, all);
    begin_leaving(h.block, found, kThreads);
    Team::meet();
    find_least(rated, all, h.block, found, kThreads);  // of equal scores the oldest: a window
    Team::meet();
    for (int p = threadIdx.x; p <= h.limit; p += kThreads) {
      const Leaving at = leaving_at(found, h.block, p);
      if (at.goes) list_at<int>(lists.leaving)[at.before] = p;
      moved[p] = at.goes ? -1 : p - at.before;
    }
    Team::meet();
  }

  // What a state needs of a key; of none if there is none.
  __device__ StepToken token_at(int p, float log_count) const {
    const int d = Round::column();
    StepToken token = {};
    token.k = load_cached(h.keys + int64_t{p} * h.width, d, h.width, h.packed_cache);
    token.v = load_cached(h.values + int64_t{p} * h.width, d, h.width, h.packed_cache);
    token.inner_scale = h.inner_scale;
    token.log_count = log_count;
    return token;
  }

  // The keys that leave join the states of the key head, before others take their places.
  __device__ void fold() const {
    const auto* leaving = list_at<int>(lists.leaving);
    for (int i = 0; i < h.group; i += h.sharing) {
      const int first = h.first_pair(i, 0), count = h.pairs[i + 1] - h.pairs[i];
      const float log_count = logf(static_cast<float>(count));
#pragma unroll 1
      for (int start = 0; start < count; start += Round::kCount) {
        Round round;
        load_round(round, h, first + start, first + start, count - start);
#pragma unroll 1
        for (int l = 0; l < h.block; l += kTogether) {
          StepToken tokens[kTogether];
#pragma unroll
          for (int j = 0; j < kTogether; ++j)
            tokens[j] = token_at(leaving[min(l + j, h.block - 1)], log_count);
#pragma unroll
          for (int j = 0; j < kTogether; ++j) {
            if (l + j >= h.block) break;
            StepToken& token = tokens[j];
            token.key_norm =
                over_lanes<kLanes>(dot(token.k, token.k)) * h.norm_scale * h.norm_weight;
            round.advance(token);
          }
        }
        round.store(h.sums, first + start, count - start, h.width, h.packed);
      }
    }
  }

  // Keys and values that have been read from the cache go where they belong now. None goes to a
  // place behind its own: those that are not read yet stay.
  __device__ void move_slot(const unsigned char* slot, const HybridSlot& at,
                            const HybridPacking& packing) const {
    const auto move_rows = [&](int kind, T* cache) {
      move(reinterpret_cast<const T*>(slot + at.offset[kind]),
           packing.bytes[kind] / static_cast<int>(sizeof(T)), at.first[kind], at.count[kind],
           cache);
    };
    move_rows(HybridRows::kKeys, h.keys);
    move_rows(HybridRows::kValues, h.values);
  }

 private:
  __device__ void move(const T* rows, int stride, int first, int count, T* cache) const {
    const auto* moved = list_at<int>(lists.moved);
    const auto each = [&](int units, const auto& copy) {
      for (int i = threadIdx.x; i < count * units; i += kThreads) {
        const int row = i / units, to = moved[first + row];
        if (to >= 0 && to != first + row) copy(row, to, i % units);
      }
    };
    constexpr int kPack = Pack<T>::kSize;
    if (h.packed_cache)
      each(h.width / kPack, [&](int row, int to, int unit) {
        *reinterpret_cast<uint4*>(cache + int64_t{to} * h.width + unit * kPack) =
            *reinterpret_cast<const uint4*>(rows + row * stride + unit * kPack);
      });
    else
      each(h.width, [&](int row, int to, int d) {
        cache[int64_t{to} * h.width + d] = rows[row * stride + d];
      });
  }
};

}  // namespace dofla::cuda
