#include "dofla/linear/hybrid_attention.h"

#include <algorithm>

#include "dofla/linear/linear_attention.h"
#include "dofla/linear/sequence_rows.h"
#include "dofla/model/softmax_attention.h"
#include "dofla/ops/heads.h"

namespace dofla {
namespace {

// Heads that hold equally many keys.
struct PartState {
  Features features;             // theirs, so that a step need not copy them
  HybridAttentionState tensors;  // empty until the first token tells the batch size
};

struct HybridState : AttentionState {
  std::vector<PartState> parts;

  bool empty() const { return parts.empty() || !parts.front().tensors.k.defined(); }

  int64_t bytes() const override {
    int64_t bytes = 0;
    if (!empty())
      for (const PartState& part : parts) bytes += part.tensors.bytes();
    return bytes;
  }

  std::unique_ptr<AttentionState> gather(std::span<const Sequence> sequences) const override {
    auto out = std::make_unique<HybridState>();
    if (sequences.empty() || empty()) return out;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto rows_of = [&](auto tensor) {
        return gather_sequences(sequences, [&](const AttentionState& state) {
          return tensor(dynamic_cast<const HybridState&>(state).parts[i].tensors);
        });
      };
      using State = HybridAttentionState;
      PartState& part = out->parts.emplace_back(PartState{parts[i].features, {}});
      part.tensors = {rows_of([](const State& state) { return state.k; }),
                      rows_of([](const State& state) { return state.v; }),
                      rows_of([](const State& state) { return state.score; }),
                      {}};
      if (parts[i].tensors.left.a.defined())
        part.tensors.left = {rows_of([](const State& state) { return state.left.log_max; }),
                             rows_of([](const State& state) { return state.left.a; }),
                             rows_of([](const State& state) { return state.left.b; })};
    }
    return out;
  }

  std::unique_ptr<AttentionState> transform(const Change& change) const override {
    auto out = std::make_unique<HybridState>();
    if (empty()) return out;
    for (const auto& [features, tensors] : parts) {
      HybridAttentionState changed = {
          change(tensors.k), change(tensors.v), change(tensors.score), {}};
      const LinearAttentionState& left = tensors.left;
      if (left.a.defined()) changed.left = {change(left.log_max), change(left.a), change(left.b)};
      out->parts.push_back({features, std::move(changed)});
    }
    return out;
  }
};

// How many tokens every sequence has seen when `more` have come, [B] on the device of the heads.
Tensor tokens_seen(const Past& past, int64_t more, const Tensor& like) {
  if (past.tokens.defined() && more == 0) return past.tokens;
  Tensor seen({like.size(0)}, DType::kI64);
  if (past.tokens.defined())
    seen.assign(past.tokens);
  else
    std::fill_n(seen.data<int64_t>(), seen.count(), past.most);
  for (int64_t b = 0; b < seen.count(); ++b) seen.data<int64_t>()[b] += more;
  return seen.to(like.device());
}

// New tokens of heads that hold equally many keys.
Tensor attend(const Heads& heads, const Past& past, const ExactKeys& exact, PartState& part) {
  const auto& [q, k, v] = heads;
  const int64_t tokens = q.size(2);
  if (tokens == 1)
    return hybrid_attention_step(q, k, v, part.features, exact, part.tensors,
                                 tokens_seen(past, 0, q));
  if (past.equal) return hybrid_attention(q, k, v, part.features, exact, &part.tensors, past.most);
  // Sequences of different lengths evict at different tokens.
  const Tensor all[] = {contiguous_heads(q), contiguous_heads(k), contiguous_heads(v)};
  Tensor out({q.size(0), tokens, q.size(1), q.size(3)}, q.dtype(), q.device());
  for (int64_t t = 0; t < tokens; ++t) {
    const auto token = [t](const Tensor& x) { return contiguous_heads(tokens_of(x, t, t + 1)); };
    const Tensor one =
        hybrid_attention_step(token(all[0]), token(all[1]), token(all[2]), part.features, exact,
                              part.tensors, tokens_seen(past, t, q));
    Tensor place = heads_of_rows(out, t, t + 1);
    copy_heads(heads_of_rows(one, 0, 1), place);
  }
  return out;
}

Heads take_heads(const Heads& heads, const HeadPart& part) {
  return {dofla::take_heads(heads.q, part), dofla::take_heads(heads.k, part),
          dofla::take_heads(heads.v, part)};
}

// Rows [B, T, H, D] of the heads of a part, and back.
Tensor take_rows(const Tensor& rows, const HeadPart& part) {
  const Tensor heads = dofla::take_heads(heads_of_rows(rows, 0, rows.size(1)), part);
  Tensor out({rows.size(0), rows.size(1), heads.size(1), rows.size(3)}, rows.dtype(),
             rows.device());
  Tensor to = heads_of_rows(out, 0, out.size(1));
  copy_heads(heads, to);
  return out;
}
void put_rows(const Tensor& from, const HeadPart& part, Tensor& rows) {
  Tensor to = heads_of_rows(rows, 0, rows.size(1));
  put_heads(heads_of_rows(from, 0, from.size(1)), part, to);
}

}  // namespace

HybridAttention::HybridAttention(const ModelConfig& config, Features features,
                                 const ExactKeys& exact)
    : head_size_(config.head_size), features_(std::move(features)) {
  require_valid(exact);
  parts_ = equal_key_parts(exact, config.kv_heads);
}

std::unique_ptr<AttentionState> HybridAttention::new_state() const {
  return std::make_unique<HybridState>();
}

bool HybridAttention::reserve(AttentionState& state, int64_t batch, int64_t, DType type,
                              const Device& device) const {
  auto& own = dynamic_cast<HybridState&>(state);
  if (!own.empty()) return false;
  own.parts.clear();
  for (const auto& [part, exact] : parts_) {
    PartState& made = own.parts.emplace_back(PartState{take_heads(features_, part), {}});
    made.tensors = new_hybrid_attention_state(batch, static_cast<int64_t>(part.key_heads.size()),
                                              head_size_, type, device, made.features, exact);
  }
  return true;
}

Tensor HybridAttention::forward(const Heads& heads, const Past& past, AttentionTape* tape) const {
  const Tensor& q = heads.q;
  if (past.state != nullptr) reserve(*past.state, q.size(0), 0, heads.k.dtype(), heads.k.device());
  const auto attend_part = [&](size_t i, const Heads& own, AttentionTape* own_tape) {
    const auto& [part, exact] = parts_[i];
    if (past.state != nullptr)
      return attend(own, past, exact, dynamic_cast<HybridState&>(*past.state).parts[i]);
    return hybrid_attention(own.q, own.k, own.v, take_heads(features_, part), exact, nullptr, 0,
                            own_tape);
  };
  if (parts_.size() == 1) return attend_part(0, heads, tape);
  Tensor out({q.size(0), q.size(2), q.size(1), q.size(3)}, q.dtype(), q.device());
  for (size_t i = 0; i < parts_.size(); ++i) {
    const HeadPart& part = parts_[i].part;
    AttentionTape* own = tape == nullptr ? nullptr : &tape->parts.emplace_back();
    put_rows(attend_part(i, take_heads(heads, part), own), part, out);
  }
  if (tape != nullptr) tape->out = out;
  return out;
}

AttentionGradients HybridAttention::backward(const Heads& heads, const AttentionTape& tape,
                                             const Tensor& grad_out,
                                             const GradientBuffers& buffers) const {
  if (parts_.size() == 1) {
    LinearAttentionGradients whole = hybrid_attention_backward(
        heads.q, heads.k, heads.v, features_, parts_.front().exact, grad_out, tape, buffers);
    return {whole.q, whole.k, whole.v, whole.features};
  }
  require(tape.parts.size() == parts_.size(), "hybrid attention: the tape of other attention");
  const GradientBuffers to = allocate_missing(buffers, heads.q, heads.k);
  AttentionGradients gradients = {to.q, to.k, to.v, zero_gradients(features_)};
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto& [part, exact] = parts_[i];
    const Heads own = take_heads(heads, part);
    const LinearAttentionGradients found =
        hybrid_attention_backward(own.q, own.k, own.v, take_heads(features_, part), exact,
                                  take_rows(grad_out, part), tape.parts[i]);
    put_heads(found.q, part, gradients.q);
    put_heads(found.k, part, gradients.k);
    put_heads(found.v, part, gradients.v);
    put_heads(found.features, features_, part, gradients.features);
  }
  return gradients;
}

std::unique_ptr<Attention> make_attention(const ModelConfig& config, const Features& features,
                                          const ExactKeys& exact) {
  if (!exact.empty()) return std::make_unique<HybridAttention>(config, features, exact);
  if (!features.empty()) return std::make_unique<LinearAttention>(features);
  return std::make_unique<SoftmaxAttention>(config);
}

}  // namespace dofla
