#include "dofla/ops/heads.h"

#include "dofla/ops/norm.h"

namespace dofla {
namespace {

const HeadsBackend& heads_backend(const Tensor& x) {
  return x.device().is_cuda() ? cuda::kHeads : cpu::kHeads;
}

// A decoder comes here for every token, and wants no message unless it is needed.
void require_heads(const Tensor& x, const char* what) {
  if (x.rank() != 4)
    throw std::invalid_argument(
        fmt::format("{}: expected [B, H, T, D], found {}", what, to_string(x.shape())));
  require(x.step(3) == 1, "{}: the vectors have gaps", what);
}

// One number a sequence, on the device of what it goes with, or nothing at all.
void require_positions(const Tensor& first, const Tensor& x, const char* what) {
  if (!first.defined()) return;
  require_shape(first, {x.size(0)}, what);
  require(first.dtype() == DType::kI64 && first.device() == x.device(),
          "{}: positions: expected I64 on the device of the heads", what);
}

void require_frequencies(const Tensor& frequencies, const Tensor& x) {
  require(frequencies.rank() == 1 && 2 * frequencies.count() <= x.size(3),
          "rotate: {} frequencies for heads of {}", frequencies.count(), x.size(3));
}

void require_same_kind(const Tensor& from, const Tensor& to) {
  require_heads(from, "copy_heads: from");
  require_heads(to, "copy_heads: to");
  require(from.dtype() == to.dtype() && from.device() == to.device(),
          "copy_heads: from {} to {}, or between devices", name(from.dtype()), name(to.dtype()));
}

}  // namespace

Tensor view_heads(const Tensor& rows, HeadColumns columns, int64_t batch, int64_t heads,
                  int64_t head_size) {
  if (rows.rank() != 2 || batch <= 0 || rows.size(0) % batch != 0)
    throw std::invalid_argument(
        fmt::format("heads: {} rows for a batch of {}", to_string(rows.shape()), batch));
  const int64_t tokens = rows.size(0) / batch, width = rows.size(1);
  require(heads > 0 && columns.offset >= 0 &&
              columns.offset + (heads - 1) * columns.stride + head_size <= width,
          "heads: the last of {} ends past column {}", heads, width);
  return rows.view({batch, heads, tokens, head_size}, columns.offset,
                   {tokens * width, columns.stride, width, 1});
}

void copy_heads(const Tensor& from, Tensor& to) {
  require_same_kind(from, to);
  require_shape(to, from.shape(), "copy_heads: to");
  heads_backend(to).copy_heads(from, Tensor(), to);
}

void append_heads(const Tensor& from, const Tensor& past, Tensor& cache) {
  require_same_kind(from, cache);
  require_shape(cache, {from.size(0), from.size(1), cache.size(2), from.size(3)},
                "append_heads: cache");
  require(past.defined(), "append_heads: no places");
  require_positions(past, from, "append_heads");
  for (int64_t b = 0; !past.device().is_cuda() && b < past.count(); ++b) {
    const int64_t at = past.data<int64_t>()[b];
    require(at >= 0 && at + from.size(2) <= cache.size(2),
            "append_heads: {} tokens at place {} of a cache of {}", from.size(2), at,
            cache.size(2));
  }
  heads_backend(cache).copy_heads(from, past, cache);
}

Tensor tokens_of(const Tensor& heads, int64_t begin, int64_t end) {
  return heads.view({heads.size(0), heads.size(1), end - begin, heads.size(3)},
                    begin * heads.step(2), {heads.step(0), heads.step(1), heads.step(2), 1});
}

Tensor heads_of_rows(const Tensor& rows, int64_t begin, int64_t end) {
  return rows.view({rows.size(0), rows.size(2), end - begin, rows.size(3)}, begin * rows.step(1),
                   {rows.step(0), rows.step(2), rows.step(1), 1});
}

Tensor contiguous_heads(const Tensor& heads) {
  if (!heads.is_view()) return heads;
  Tensor out(heads.shape(), heads.dtype(), heads.device());
  copy_heads(heads, out);
  return out;
}

void rotate(Tensor& x, const Tensor& frequencies, const Tensor& first, bool back) {
  require_heads(x, "rotate");
  require_frequencies(frequencies, x);
  require_positions(first, x, "rotate");
  heads_backend(x).rotate(x, frequencies, first, back);
}

void place_heads(const Placement& placement, const Tensor& first, Tensor& q, Tensor& k) {
  const bool norms = placement.q_norm.defined();
  require(norms == placement.k_norm.defined(), "place_heads: one norm for queries and keys");
  require_heads(q, "place_heads: q");
  require_heads(k, "place_heads: k");
  require_shape(k, {q.size(0), k.size(1), q.size(2), q.size(3)}, "place_heads: k");
  if (norms) {
    require_shape(placement.q_norm, {q.size(3)}, "place_heads: norm");
    require_shape(placement.k_norm, {q.size(3)}, "place_heads: norm");
  }
  if (q.size(2) == 1 && heads_backend(q).place_token_heads != nullptr) {
    if (placement.frequencies.defined()) require_frequencies(placement.frequencies, q);
    require_positions(first, q, "place_heads");
    return heads_backend(q).place_token_heads(placement, first, q, k);
  }
  if (norms) {
    q = rms_norm(contiguous_heads(q), placement.q_norm, placement.epsilon);
    k = rms_norm(contiguous_heads(k), placement.k_norm, placement.epsilon);
  }
  if (!placement.frequencies.defined()) return;
  rotate(q, placement.frequencies, first);
  rotate(k, placement.frequencies, first);
}

}  // namespace dofla
