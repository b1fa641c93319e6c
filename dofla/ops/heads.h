// From the rows of a projection to heads, and their rotary position embedding. All of these take
// views of heads as well as heads that lie together.
#pragma once

#include <vector>

#include "dofla/core/tensor.h"

namespace dofla {

// Which columns of a projection's output hold head h: [offset + h·stride, offset + h·stride + D).
struct HeadColumns {
  int64_t offset = 0;
  int64_t stride = 0;
};

// The heads where the projection left them: a view of the rows.
Tensor view_heads(const Tensor& rows,  // [B·T, N]
                  HeadColumns columns, int64_t batch, int64_t heads,
                  int64_t head_size);  // -> [B, H, T, D]

void copy_heads(const Tensor& from,  // [B, H, T, D]
                Tensor& to);         // [B, H, T, D]

// A copy that lies together, head by head; itself if it does already.
Tensor contiguous_heads(const Tensor& heads);  // [B, H, T, D]

Tensor gather_heads(const Tensor& rows,  // [B·T, N]
                    HeadColumns columns, int64_t batch, int64_t heads,
                    int64_t head_size);  // -> [B, H, T, D]

// The way back: writes every head to its columns of the rows. Other columns stay as they are.
void scatter_heads(const Tensor& heads,  // [B, H, T, D]
                   HeadColumns columns,
                   Tensor& rows);  // [B·T, N]

// Rotates the first 2·F coordinates of every vector in place: coordinate i with i + F by the angle
// position · frequencies[i]. The first token of every sequence stands at `first_position`.
// Negated frequencies rotate back, which is the inverse and the backward as well.
void rotate(Tensor& x,                              // [B, H, T, D], F32
            const std::vector<float>& frequencies,  // F
            int64_t first_position);

}  // namespace dofla
