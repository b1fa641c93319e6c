// Where the heads of a projection lie, and what queries and keys go through before they attend: an
// RMS norm and the rotary position embedding. All of these take views of heads as well as heads
// that lie together.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

// Which columns of a projection's rows hold head h: [offset + h·stride, offset + h·stride + D).
struct HeadColumns {
  int64_t offset = 0;
  int64_t stride = 0;
  size_t projection = 0;  // which one, in a layer that has several
};

// The heads where the projection left them: a view of the rows.
Tensor view_heads(const Tensor& rows,  // [B·T, N]
                  HeadColumns columns, int64_t batch, int64_t heads,
                  int64_t head_size);  // -> [B, H, T, D]

// Tokens [begin, end) of heads that lie together: a view.
Tensor tokens_of(const Tensor& heads,  // [B, H, T, D]
                 int64_t begin, int64_t end);
// The same of the rows that attention returns, as heads.
Tensor heads_of_rows(const Tensor& rows,  // [B, T, H, D]
                     int64_t begin, int64_t end);

void copy_heads(const Tensor& from,  // [B, H, T, D]
                Tensor& to);         // [B, H, T, D]

// The same into a cache with room for more tokens: token t of sequence b goes to place
// past[b] + t. On a GPU the places are not checked.
void append_heads(const Tensor& from,  // [B, H, T, D]
                  const Tensor& past,  // [B], I64, on the same device
                  Tensor& cache);      // [B, H, capacity, D]

// A copy that lies together, head by head; itself if it does already.
Tensor contiguous_heads(const Tensor& heads);  // [B, H, T, D]

// Rotates the first 2·F coordinates of every vector in place: coordinate i with i + F by the angle
// position · frequencies[i]. `back` rotates by the negated angle, which is the inverse and the
// backward as well.
void rotate(Tensor& x,                  // [B, H, T, D]
            const Tensor& frequencies,  // [F], F32, on the same device
            const Tensor& first,  // [B], I64, on the same device: the position of every sequence's
                                  // first token; undefined: 0
            bool back = false);

// What places a query or key at its position.
struct Placement {
  Tensor q_norm = {}, k_norm = {};  // [D], F32: weights of the RMS norms, or both undefined
  double epsilon = 0;
  Tensor frequencies = {};  // [F], F32, or undefined
};

// Queries and keys get their RMS norm and their rotation, on a GPU in one launch for one token of
// every sequence. Without norms they are rotated in place. With norms q and k become tensors of
// their own, and what they were stays as it is: the norms' backward needs it.
void place_heads(const Placement& placement,
                 const Tensor& first,  // as for rotate
                 Tensor& q,            // [B, H, T, D]
                 Tensor& k);           // [B, Hkv, T, D]

// What a device has to implement; ops/heads.cc checks the arguments and picks the device.
struct HeadsBackend {
  void (*copy_heads)(const Tensor& from, const Tensor& past, Tensor& to);
  void (*rotate)(Tensor& x, const Tensor& frequencies, const Tensor& first, bool back);
  // One token of every sequence in one launch, or null.
  void (*place_token_heads)(const Placement& placement, const Tensor& first, Tensor& q, Tensor& k);
};
namespace cpu {
extern const HeadsBackend kHeads;
// [B, H, T, D] to [B, Hkv, T, D]: the query heads that share a key head add up, in order.
Tensor sum_over_groups(const Tensor& parts, int64_t key_heads);
}  // namespace cpu
namespace cuda {
extern const HeadsBackend kHeads;
}  // namespace cuda

}  // namespace dofla
