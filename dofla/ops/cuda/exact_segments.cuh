// The segments that attention to exact keys works in: the queries of kTokensTogether tokens, or of
// fewer where a cache becomes full or the tokens end. Those of a segment see the keys that stayed
// when it began, as long as these are held, and its own, causally and as long as they are held.
// Until the cache is full, all keys so far count as a segment's own. Keys are called by their
// position among all that a segment sees, oldest first.
#pragma once

#include <algorithm>

#include "dofla/ops/cuda/exact_keys_kernels.h"
#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/row_tile.cuh"

namespace dofla::cuda {

constexpr int kRowTile = 16;  // queries of a head that a warp takes

struct Segment {
  const int32_t* kept;    // keys that stayed
  const int32_t* leaves;  // of every key of the head
  int stay;               // how many stayed
  int own_first, own;     // first and number of its own keys
  int first, queries;     // first and number of its queries
  int time;               // how many times keys have left when it begins; then once every `block`
  int block_shift;        // log2 of the block

  __device__ int count() const { return stay + own; }
  __device__ int key(int position) const {
    return position < stay ? kept[position] : own_first + position - stay;
  }
  // The last position that a query sees.
  __device__ int last_seen(int query) const { return stay + own - queries + query; }
  // It sees keys that leave at this time or later.
  __device__ int time_of(int query) const { return time == 0 ? 0 : time + (query >> block_shift); }
  // The queries of a group of heads, in tiles of kRowTile rows, head after head.
  __device__ int tiles() const { return (queries + kRowTile - 1) / kRowTile; }
};

// What a block looks up: the key at every position, and when it leaves.
struct Positions {
  int2* list;

  __device__ int key(int position) const { return list[position].x; }
  __device__ int leaves(int position) const { return list[position].y; }
};
inline size_t position_bytes(const ExactKeysShape& s) {
  constexpr int kLastTile = 64;  // is looked at whole
  return static_cast<size_t>(s.most_held() - s.block + kTokensTogether + kLastTile) * sizeof(int2);
}

// By all threads of a block, for positions `first` to `end`.
__device__ __forceinline__ void find_positions(const Segment& segment, int first, int end,
                                               const Positions& to) {
  for (int p = first + threadIdx.x; p < end; p += blockDim.x) {
    const int key = segment.key(p);
    to.list[p] = make_int2(key, segment.leaves[key]);
  }
}

// How many segments a head has until its cache is full.
__host__ __device__ inline int segments_until_full(const KeyCache& cache, int tokens) {
  const int queries = cache.limit - cache.before < tokens ? cache.limit - cache.before : tokens;
  return (queries + kTokensTogether - 1) / kTokensTogether;
}

struct Segments {
  KeptKeys keys;
  int64_t kept_row;  // Σ rounds (K − block)
  int tokens, key_rows, block, block_shift, key_heads;
  KeyCache cache[kMostKeyHeads];

  // One without queries where a head has none so late.
  __device__ Segment at(int b, int key_head, int n) const {
    const KeyCache& own = cache[key_head];
    const int until_full = segments_until_full(own, tokens), round = n - until_full;
    if (round >= own.rounds) return {};
    const int32_t* leaves = keys.leaves + (int64_t{b} * key_heads + key_head) * key_rows;
    if (round < 0) {
      const int first = n * kTokensTogether;
      const int queries = min(kTokensTogether, min(own.limit - own.before, tokens) - first);
      return {nullptr, leaves, 0, 0, own.before + first + queries, first, queries, 0, block_shift};
    }
    const int stay = own.limit - block, first = own.limit + round * kTokensTogether;
    const int count = min(kTokensTogether, own.before + tokens - first);
    return {keys.kept + b * kept_row + own.first_kept + int64_t{round} * stay,
            leaves,
            stay,
            first,
            count,
            first - own.before,
            count,
            1 + (round * kTokensTogether >> block_shift),
            block_shift};
  }
};

inline Segments segments_of(const ExactKeysShape& s, const KeptKeys& keys) {
  Segments segments = {keys,
                       s.kept(),
                       static_cast<int>(s.queries),
                       static_cast<int>(s.keys),
                       static_cast<int>(s.block),
                       0,
                       static_cast<int>(s.key_heads),
                       {}};
  while (1 << segments.block_shift < segments.block) ++segments.block_shift;
  for (int64_t h = 0; h < s.key_heads; ++h) segments.cache[h] = s.cache[h];
  return segments;
}

inline bool valid(const ExactKeysShape& s) {
  if (s.key_heads < 1 || s.key_heads > kMostKeyHeads || s.heads % s.key_heads != 0 || s.width < 1 ||
      s.width > kWidestHead)
    return false;
  for (int64_t h = 0; h < s.key_heads; ++h)
    if (s.cache[h].before > s.cache[h].limit || s.cache[h].before + s.queries > s.keys)
      return false;
  return true;
}

inline int chunks(int64_t all, int64_t each) {
  return static_cast<int>((all + each - 1) / each);
}

inline int most_segments(const ExactKeysShape& s) {
  int most = 0;
  for (int64_t h = 0; h < s.key_heads; ++h)
    most = std::max(
        most, segments_until_full(s.cache[h], static_cast<int>(s.queries)) + s.cache[h].rounds);
  return most;
}
// Row tiles that the queries of a segment and a group have at most.
inline int row_tiles(const ExactKeysShape& s) {
  return static_cast<int>(s.heads / s.key_heads) *
         chunks(std::min<int64_t>(s.queries, kTokensTogether), kRowTile);
}
// So many blocks for each segment of each key head.
inline dim3 grid_of(const ExactKeysShape& s, int each) {
  return dim3(static_cast<unsigned>(most_segments(s) * each),
              static_cast<unsigned>(s.batch * s.key_heads));
}

// Where row r of a block that begins with row tile `tile` of a group is.
struct QueryRow {
  int head, query;  // of the group, of the segment
  bool exists;
};
__device__ __forceinline__ QueryRow query_row(const Segment& segment, int group, int tile, int r) {
  const int id = tile + r / kRowTile, tiles = segment.tiles();
  const int head = id / tiles, query = id % tiles * kRowTile + r % kRowTile;
  return {head, query, head < group && query < segment.queries};
}

// Brings `rows` rows of the head's width to where to(row) says, in the background where it can, and
// fills them up with 0. from(row) is null for a row of zeros; `anywhere` is some address that
// exists.
template <class T, int kWidth, class From, class To>
__device__ __forceinline__ void load_named_rows(int rows, int width, bool packed,
                                                const void* anywhere, const From& from,
                                                const To& to) {
  constexpr int kPack = Pack<T>::kSize, kPacks = kWidth / kPack;
  for (int i = threadIdx.x; i < rows * kPacks; i += blockDim.x) {
    const int row = i / kPacks, column = i % kPacks * kPack;
    const T* source = from(row);
    T* target = to(row) + column;
    const bool valid = source != nullptr && column < width;
    if (packed && sizeof(T) == 2) {
      copy_16_bytes(target, valid ? source + column : anywhere, valid);
    } else {
#pragma unroll
      for (int e = 0; e < kPack; ++e)
        target[e] = valid && column + e < width ? source[column + e] : from_float<T>(0.0f);
    }
  }
}

// Rows of keys or values from `position` on, up to position `end`.
template <class T, int kWidth, int kStride>
__device__ __forceinline__ void load_segment_keys(Tile<T, kStride> to, int rows,
                                                  const Positions& positions, int position, int end,
                                                  const HeadRows& from, const T* head, int width,
                                                  bool packed) {
  load_named_rows<T, kWidth>(
      rows, width, packed, head,
      [&](int row) {
        const int p = position + row;
        return p < end ? head + positions.key(p) * from.token_step : static_cast<const T*>(nullptr);
      },
      [&](int row) { return to.at(row, 0); });
}

// Rows of queries, or of what goes with them, from row tile `tile` on of a group.
template <class T, int kWidth, int kStride>
__device__ __forceinline__ void load_segment_queries(Tile<T, kStride> to, int rows,
                                                     const Segment& segment, int group, int tile,
                                                     const HeadRows& from, int b, int key_head,
                                                     int width, bool packed) {
  load_named_rows<T, kWidth>(
      rows, width, packed, from.data,
      [&](int row) {
        const QueryRow at = query_row(segment, group, tile, row);
        return at.exists ? head_of<T>(from, b, key_head * group + at.head) +
                               (segment.first + at.query) * from.token_step
                         : static_cast<const T*>(nullptr);
      },
      [&](int row) { return to.at(row, 0); });
}

}  // namespace dofla::cuda
