#include "dofla/ops/gradient_buffers.h"

#include "dofla/ops/heads.h"

namespace dofla {
namespace {

Tensor buffer_for(const Tensor& x, const Tensor& buffer) {
  if (!buffer.defined()) return Tensor(x.shape(), x.dtype(), x.device());
  require_shape(buffer, x.shape(), "attention backward: buffer");
  require(buffer.dtype() == x.dtype() && buffer.device() == x.device(),
          "attention backward: buffer in {} for {}, or on another device", name(buffer.dtype()),
          name(x.dtype()));
  return buffer;
}

}  // namespace

GradientBuffers allocate_missing(const GradientBuffers& buffers, const Tensor& q, const Tensor& k) {
  return {buffer_for(q, buffers.q), buffer_for(k, buffers.k), buffer_for(k, buffers.v)};
}

void move_into(const Tensor& buffer, Tensor& gradient) {
  if (!buffer.defined()) return;
  Tensor to = buffer;
  copy_heads(gradient, to);
  gradient = to;
}

}  // namespace dofla
