#include "dofla/linear/hybrid_attention.h"

#include <algorithm>

#include "dofla/linear/linear_attention.h"
#include "dofla/linear/sequence_rows.h"
#include "dofla/model/softmax_attention.h"
#include "dofla/ops/heads.h"

namespace dofla {
namespace {

struct HybridState : AttentionState {
  HybridAttentionState tensors;  // empty until the first token tells the batch size

  bool empty() const { return !tensors.k.defined(); }

  int64_t bytes() const override { return empty() ? 0 : tensors.bytes(); }

  std::unique_ptr<AttentionState> gather(std::span<const Sequence> sequences) const override {
    auto out = std::make_unique<HybridState>();
    if (sequences.empty() || empty()) return out;
    const auto rows_of = [&](auto tensor) {
      return gather_sequences(sequences, [&](const AttentionState& state) {
        return tensor(dynamic_cast<const HybridState&>(state).tensors);
      });
    };
    using State = HybridAttentionState;
    out->tensors = {rows_of([](const State& state) { return state.k; }),
                    rows_of([](const State& state) { return state.v; }),
                    rows_of([](const State& state) { return state.score; }),
                    {}};
    if (tensors.left.a.defined())
      out->tensors.left = {rows_of([](const State& state) { return state.left.log_max; }),
                           rows_of([](const State& state) { return state.left.a; }),
                           rows_of([](const State& state) { return state.left.b; })};
    return out;
  }

  std::unique_ptr<AttentionState> transform(const Change& change) const override {
    auto out = std::make_unique<HybridState>();
    if (empty()) return out;
    out->tensors = {change(tensors.k), change(tensors.v), change(tensors.score), {}};
    const LinearAttentionState& left = tensors.left;
    if (left.a.defined())
      out->tensors.left = {change(left.log_max), change(left.a), change(left.b)};
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

}  // namespace

HybridAttention::HybridAttention(const ModelConfig& config, Features features, ExactKeys exact)
    : key_heads_(config.kv_heads),
      head_size_(config.head_size),
      features_(std::move(features)),
      exact_(std::move(exact)) {
  require_valid(exact_);
}

std::unique_ptr<AttentionState> HybridAttention::new_state() const {
  return std::make_unique<HybridState>();
}

bool HybridAttention::reserve(AttentionState& state, int64_t batch, int64_t, DType type,
                              const Device& device) const {
  auto& own = dynamic_cast<HybridState&>(state);
  if (!own.empty()) return false;
  own.tensors =
      new_hybrid_attention_state(batch, key_heads_, head_size_, type, device, features_, exact_);
  return true;
}

Tensor HybridAttention::forward(const Heads& heads, const Past& past, AttentionTape* tape) const {
  const auto& [q, k, v] = heads;
  if (past.state == nullptr) return hybrid_attention(q, k, v, features_, exact_, nullptr, 0, tape);
  reserve(*past.state, q.size(0), 0, k.dtype(), k.device());
  HybridAttentionState& state = dynamic_cast<HybridState&>(*past.state).tensors;
  const int64_t tokens = q.size(2);
  if (tokens == 1)
    return hybrid_attention_step(q, k, v, features_, exact_, state, tokens_seen(past, 0, q));
  if (past.equal) return hybrid_attention(q, k, v, features_, exact_, &state, past.most);
  // Sequences of different lengths evict at different tokens.
  const Tensor all[] = {contiguous_heads(q), contiguous_heads(k), contiguous_heads(v)};
  Tensor out({q.size(0), tokens, q.size(1), q.size(3)}, q.dtype(), q.device());
  for (int64_t t = 0; t < tokens; ++t) {
    const auto token = [t](const Tensor& x) { return contiguous_heads(tokens_of(x, t, t + 1)); };
    const Tensor one = hybrid_attention_step(token(all[0]), token(all[1]), token(all[2]), features_,
                                             exact_, state, tokens_seen(past, t, q));
    Tensor place = heads_of_rows(out, t, t + 1);
    copy_heads(heads_of_rows(one, 0, 1), place);
  }
  return out;
}

Tensor HybridAttention::write_step(TokenProgram& program, const Heads& heads,
                                   AttentionState& state) const {
  return program.hybrid_attention_step(heads.q, heads.k, heads.v, features_, exact_,
                                       dynamic_cast<HybridState&>(state).tensors);
}

AttentionGradients HybridAttention::backward(const Heads& heads, const AttentionTape& tape,
                                             const Tensor& grad_out,
                                             const GradientBuffers& buffers) const {
  LinearAttentionGradients found = hybrid_attention_backward(heads.q, heads.k, heads.v, features_,
                                                             exact_, grad_out, tape, buffers);
  return {found.q, found.k, found.v, found.features};
}

std::unique_ptr<Attention> make_attention(const ModelConfig& config, const Features& features,
                                          const ExactKeys& exact) {
  if (!exact.empty()) return std::make_unique<HybridAttention>(config, features, exact);
  if (!features.empty()) return std::make_unique<LinearAttention>(features);
  return std::make_unique<SoftmaxAttention>(config);
}

}  // namespace dofla
