// One token of one key head in hybrid attention, with up to eight of its query heads at a time: if
// the cache is full, keys leave for the features; queries look at the keys and at the features; the
// new key joins. What is read comes in slots (hybrid_slots.cuh), whoever fills them. All threads
// that serve the key head, a Team, come through here together.
#pragma once

#include "dofla/ops/cuda/hybrid_eviction.cuh"
#include "dofla/ops/cuda/hybrid_queries.cuh"

namespace dofla::cuda {

template <class T, int kWidth, int kQueryPartCount, class Team>
struct HybridStep : HybridQueries<T, kWidth, kQueryPartCount, Team> {
  using Queries = HybridQueries<T, kWidth, kQueryPartCount, Team>;
  using Queries::column, Queries::lane, Queries::warp;
  using Queries::first, Queries::queries, Queries::s;
  using Queries::first_feature, Queries::features_of, Queries::states;
  using Queries::head, Queries::logits, Queries::untied;
  using Queries::kLanes, Queries::kThreads, Queries::kWarps;
  using Queries::own_part, Queries::own_query, Queries::parts;
  using typename Queries::Shared;
  static constexpr int kRows = kThreads / kLanes;      // of directions at a time
  static constexpr int kPerLane = (kWidth + 31) / 32;  // coordinates of features' sums

  float most = -INFINITY;            // logit of a key that a lane has seen, of query lane / 4
  float values[4] = {};              // as add_values() has them
  float of_features[kPerLane] = {};  // of the warp's query

  using Queries::Queries;

  // Queries look at `count` directions from pair `begin` on.
  __device__ void look_at_directions(const float* rows, int stride, int begin, int count) const {
    const auto* offsets = list_at<float>(s.lists.feature_offsets);
    auto* found = list_at<float>(s.lists.feature_logits);
    const int width = (head().width + 3) / 4 * 4, per_query = features_of(0);
    for (int start = 0; start < count; start += kRows) {
      const int row = start + threadIdx.x / kLanes, pair = begin + row;
      const bool inside = row < count;
      int query = 0;
      if (untied())
        query = inside ? pair / per_query : 0;
      else
        while (query + 1 < queries && pair >= s.first_pair[query + 1]) ++query;
      float4 u = {};
      if (inside && column() < width)
        u = *reinterpret_cast<const float4*>(rows + row * stride + column());
      const float4 q = *reinterpret_cast<const float4*>(&s.queries[query][column()]);
      const float along = over_lanes<kLanes>(dot(u, q));
      if (inside && column() == 0) {
        const int feature = untied() ? pair - query * per_query : pair;
        found[pair] = fmaf(along, head().inner_scale, offsets[feature]);
      }
    }
  }

  // And at the keys of places from `begin` to `end`, a whole number of tiles or the last.
  __device__ void look_at_keys(const KeyRows<T>& keys, int begin, int end) {
    const int g = lane() / 4, c = lane() % 4;
    const bool full = head().full();
    const float scale = head().scale, shift = g < queries ? s.shift[g] : 0;
    const auto* moved = list_at<int>(s.lists.moved);
    for (int tile = begin + 8 * warp(); tile < end; tile += 8 * kWarps) {
      const float2 products = multiply_keys(s.parts, keys, tile);
      const int place = tile + 2 * c;
      const auto logit = [&](float product, int p) {
        return p >= end || (full && moved[p] < 0) ? -INFINITY : fmaf(product, scale, shift);
      };
      const float2 found = make_float2(logit(products.x, place), logit(products.y, place + 1));
      most = fmaxf(most, fmaxf(found.x, found.y));
      if (g < queries) *reinterpret_cast<float2*>(logits() + g * s.lists.stride + place) = found;
    }
  }

  // All logits become weights, relative to the largest of a query.
  __device__ void weigh() {
    const HybridHead<T>& h = head();
    most = quad_max(most);
    if (lane() % 4 == 0) s.most[warp()][lane() / 4] = most;
    Team::meet();
    const int query = own_query(), step = 32 * parts(), from = 32 * own_part() + lane();
    const auto* looks = list_at<float>(s.lists.feature_logits);
    float peak = lane() < kWarps ? s.most[lane()][query] : -INFINITY;
    const int begin = s.first_pair[query], count = h.any_left ? features_of(query) : 0;
    for (int m = lane(); m < count; m += 32) peak = fmaxf(peak, looks[begin + m]);
    peak = warp_max(peak);
    float of_keys = 0, of_features = 0;
    float* own = logits() + query * s.lists.stride;
    for (int p = from; p < (h.held + 16) / 16 * 16; p += step) {  // whole tiles of values
      const float weight = p <= h.held ? fast_exp(own[p] - peak) : 0;
      own[p] = weight;
      of_keys += weight;
    }
    auto* weights = list_at<float>(s.lists.feature_weights);
    const auto* sums = list_at<float>(s.lists.feature_weight_sums) + first_feature(query);
    for (int m = from; m < count; m += step) {
      const float weight = fast_exp(looks[begin + m] - peak);
      weights[begin + m] = weight;
      of_features = fmaf(weight, sums[m], of_features);
    }
    of_keys = warp_sum(of_keys), of_features = warp_sum(of_features);
    if (lane() == 0) s.totals[warp()] = make_float2(of_keys, of_features);
    Team::meet();
  }

  // The values of the same places, sixteen at a time: a warp has some coordinates of every so many.
  __device__ void look_at_values(const KeyRows<T>& rows, int begin, int end) {
    const int tile = warp() % Shared::kTiles, group = warp() / Shared::kTiles;
    for (int place = begin + 16 * group; place < end; place += 16 * Shared::kGroups)
      add_values(rows, place, 16 * tile, logits() + place, s.lists.stride, queries, values);
  }

  // The sums of `count` features from `begin` on.
  __device__ void look_at_sums(const float* rows, int stride, int begin, int count) {
    const int query = own_query(), own = first_feature(query);
    const int end = min(begin + count, own + features_of(query));
    const auto* weights = list_at<float>(s.lists.feature_weights) + s.first_pair[query] - own;
    for (int m = max(begin, own) + own_part(); m < end; m += parts()) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if (const int d = lane() + 32 * i; d < head().width)
          of_features[i] = fmaf(weights[m], rows[(m - begin) * stride + d], of_features[i]);
    }
  }

  // All that is in the slot.
  struct Progress {
    bool keys = false, values = false;
  };
  __device__ void take(const unsigned char* slot, Progress& seen) {
    using Rows = HybridRows;
    const HybridHead<T>& h = head();
    const HybridPacking& packing = s.packing;
    const HybridSlot& at = s.slot;
    const int width = (h.width + 7) / 8 * 8;
    const auto floats = [&](int kind) {
      return reinterpret_cast<const float*>(slot + at.offset[kind]);
    };
    const auto stride = [&](int kind, size_t element) {
      return packing.bytes[kind] / static_cast<int>(element);
    };
    const auto rows_of = [&](int kind) {
      return KeyRows<T>{reinterpret_cast<const T*>(slot + at.offset[kind]),
                        s.newest[kind == Rows::kKeys ? 0 : 1],
                        at.first[kind],
                        h.held,
                        stride(kind, sizeof(T)),
                        width};
    };
    const auto end_of = [&](int kind) {
      return packing.done(kind) ? h.held + 1 : at.first[kind] + at.count[kind];
    };
    if (at.count[Rows::kDirections] > 0)
      look_at_directions(floats(Rows::kDirections), stride(Rows::kDirections, sizeof(float)),
                         at.first[Rows::kDirections], at.count[Rows::kDirections]);
    if (!seen.keys && packing.done(Rows::kDirections)) {
      look_at_keys(rows_of(Rows::kKeys), at.first[Rows::kKeys], end_of(Rows::kKeys));
      seen.keys = packing.done(Rows::kKeys);
      if (seen.keys) weigh();
    }
    if (seen.keys && !seen.values) {
      look_at_values(rows_of(Rows::kValues), at.first[Rows::kValues], end_of(Rows::kValues));
      seen.values = packing.done(Rows::kValues);
    }
    if (at.count[Rows::kSums] > 0)
      look_at_sums(floats(Rows::kSums), stride(Rows::kSums, sizeof(float)), at.first[Rows::kSums],
                   at.count[Rows::kSums]);
  }

  // The sums of all features as they are since keys have left.
  __device__ void look_at_changed_sums() {
    const int64_t own = untied() ? 0 : head().first_pair(first, 0);
    look_at_sums(head().sums.b + own * head().width, head().width, 0, states());
  }

  // write(query, d, value) receives what attention gives.
  template <class Write>
  __device__ void finish(const Write& write) const {
    const int d = warp() % Shared::kTiles * 16 + lane() / 4 * 2, c = lane() % 4;
    auto* found = list_at<float>(s.lists.values);
    const auto found_at = [&](int group, int query, int at) {
      return found + (group * queries + query) * kWidth + at;
    };
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (2 * c + i < queries)
        *reinterpret_cast<float2*>(found_at(warp() / Shared::kTiles, 2 * c + i, d)) =
            make_float2(values[i], values[2 + i]);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) s.of_features[warp()][lane() + 32 * i] = of_features[i];
    if (threadIdx.x < queries) {
      float of_keys = 0, all = 0;
      for (int w = threadIdx.x; w < kWarps; w += queries)
        of_keys += s.totals[w].x, all += s.totals[w].x + s.totals[w].y;
      s.inverse[threadIdx.x] = make_float2(1 / of_keys, 1 / all);
    }
    Team::meet();
    for (int i = threadIdx.x; i < queries * kWidth; i += kThreads) {
      const int query = i / kWidth, at = i % kWidth;
      if (at >= head().width) continue;
      float sum = 0;
#pragma unroll
      for (int group = 0; group < Shared::kGroups; ++group) sum += *found_at(group, query, at);
      for (int w = query; w < kWarps; w += queries) sum += s.of_features[w][at];
      write(query, at, sum * s.inverse[query].y);
    }
  }

  // The attention of these queries to the keys among themselves counts for their scores; those of
  // the last queries are what the cache keeps.
  __device__ void rate_keys() const {
    const HybridHead<T>& h = head();
    if (!h.by_score) return;
    const bool full = h.full(), last = first + queries == h.group;
    auto* score = list_at<float>(s.lists.score);
    const auto* moved = list_at<int>(s.lists.moved);
    for (int p = threadIdx.x; p <= h.held; p += kThreads) {
      float attended = 0;
      for (int i = 0; i < queries; ++i)
        attended = fmaf(logits()[i * s.lists.stride + p], s.inverse[i].x, attended);
      score[p] = first == 0 ? fmaf(h.decay, score[p], attended) : score[p] + attended;
      const int to = full ? moved[p] : p;
      if (last && to >= 0) h.score[to] = score[p];
    }
  }

  // The new key joins the cache, which has been read.
  __device__ void append() const {
    const HybridHead<T>& h = head();
    const int64_t row = int64_t{h.place()} * h.width;
    for (int d = threadIdx.x; d < h.width; d += kThreads)
      h.keys[row + d] = s.newest[0][d], h.values[row + d] = s.newest[1][d];
  }
};

}  // namespace dofla::cuda
