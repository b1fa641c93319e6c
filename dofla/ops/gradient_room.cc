#include "dofla/ops/gradient_room.h"

#include "dofla/ops/heads.h"

namespace dofla {
namespace {

Tensor room_for(const Tensor& x, const Tensor& room) {
  if (!room.defined()) return Tensor(x.shape(), x.dtype(), x.device());
  require_shape(room, x.shape(), "attention backward: room");
  require(room.dtype() == x.dtype() && room.device() == x.device(),
          "attention backward: room in {} for {}, or on another device", name(room.dtype()),
          name(x.dtype()));
  return room;
}

}  // namespace

GradientRoom whole_room(const GradientRoom& room, const Tensor& q, const Tensor& k) {
  return {room_for(q, room.q), room_for(k, room.k), room_for(k, room.v)};
}

void move_into(const Tensor& room, Tensor& gradient) {
  if (!room.defined()) return;
  Tensor to = room;
  copy_heads(gradient, to);
  gradient = to;
}

}  // namespace dofla
