// The query heads of a key head that attend together, and what they are told before they look: how
// much there is, the features, the token.
#pragma once

#include "dofla/ops/cuda/hybrid_head.cuh"

namespace dofla::cuda {

template <class T, int kWidth, int kQueryPartCount, class Team>
struct HybridQueries {
  static constexpr int kThreads = Team::kThreads, kWarps = kThreads / 32, kLanes = kWidth / 4;
  using Shared = HybridShared<T, kWidth, kQueryPartCount, kWarps>;

  Shared& s;
  int first, queries;  // query heads of the key head

  __device__ HybridQueries(Shared& shared, int first_query)
      : s(shared),
        first(first_query),
        queries(min(kQueriesTogether, shared.head.group - first_query)) {}

  __device__ static int warp() { return threadIdx.x / 32; }
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int column() { return threadIdx.x % kLanes * 4; }
  __device__ const HybridHead<T>& head() const { return s.head; }
  __device__ bool untied() const { return s.head.sharing > 1; }
  __device__ float* logits() const { return list_at<float>(s.lists.logits); }

  // A warp weighs what one query sees; all that serve it take turns.
  __device__ int own_query() const { return warp() % queries; }
  __device__ int own_part() const { return warp() / queries; }
  __device__ int parts() const { return (kWarps - own_query() + queries - 1) / queries; }

  // Pairs of a query and a feature that it looks at are counted through the queries; a query that
  // shares its state counts the same features as all.
  __device__ int pairs() const { return s.first_pair[queries]; }
  __device__ int first_feature(int query) const { return untied() ? 0 : s.first_pair[query]; }
  __device__ int features_of(int query) const {
    return s.first_pair[query + 1] - s.first_pair[query];
  }
  __device__ int states() const { return untied() ? features_of(0) : pairs(); }

  // Says what these queries read, and what of it the first slot has. Threads meet before they look.
  __device__ void begin(int key_bytes, int feature_bytes, int slot_bytes) const {
    const HybridHead<T>& h = head();
    const auto first_pair = [&](int i) { return h.any_left ? h.first_pair(first + i, first) : 0; };
    if (threadIdx.x <= queries) s.first_pair[threadIdx.x] = first_pair(threadIdx.x);
    if (threadIdx.x > 0) return;
    const int pairs = first_pair(queries);
    s.packing = hybrid_packing(h.held, h.full(), pairs, untied() ? first_pair(1) : pairs, key_bytes,
                               feature_bytes, slot_bytes);
    s.slot = s.packing.next();
  }
  // The last slot has been read by all.
  __device__ void next_slot() const {
    if (threadIdx.x == 0) s.slot = s.packing.next();
    Team::meet();
  }

  // What features add to their products with the query, once those that left have joined them.
  __device__ void load_features() const {
    const HybridHead<T>& h = head();
    if (!h.any_left) return;
    auto *offsets = list_at<float>(s.lists.feature_offsets),
         *weights = list_at<float>(s.lists.feature_weight_sums);
    const int own = untied() ? 0 : h.first_pair(first, 0);
    for (int i = 0; i < (untied() ? 1 : queries); ++i) {
      const int begin = first_feature(i), count = features_of(i);
      const float log_count = logf(static_cast<float>(count));
      for (int m = begin + threadIdx.x; m < begin + count; m += kThreads) {
        offsets[m] = fmaf(0.5f, h.log_alpha[own + m] - log_count, h.sums.log_max[own + m]);
        weights[m] = h.sums.a[own + m];
      }
    }
  }

  // By a warp: four coordinates of a query that attends, a lane's own. The norm that features leave
  // out is added to the keys instead: the ratio is the same.
  __device__ void put_query(int query, float4 q) const {
    const float norm = over_lanes<kLanes>(dot(q, q)) * head().norm_scale;
    if (lane() == 0) s.shift[query] = head().any_left ? norm : 0;
    if (lane() >= kLanes) return;
    *reinterpret_cast<float4*>(&s.queries[query][column()]) = q;
    s.parts.put(query, column(), q);
  }
  // The same of the new key and its value.
  __device__ void put_newest(float4 key, float4 value) const {
    if (lane() >= kLanes) return;
    store_pair(&s.newest[0][column()], Pair<T>(key.x, key.y));
    store_pair(&s.newest[0][column() + 2], Pair<T>(key.z, key.w));
    store_pair(&s.newest[1][column()], Pair<T>(value.x, value.y));
    store_pair(&s.newest[1][column() + 2], Pair<T>(value.z, value.w));
  }
};

}  // namespace dofla::cuda
