// Attention to keys that a cache holds, as a step of a program: on the GPU in one launch, and on
// the CPU.
#include "dofla/ops/softmax_attention.h"
#include "tests/ops/cuda/program_on_gpu.h"

namespace dofla {
namespace {

using test::kEps;
using test::normal_tensor;

struct TokenHeads {
  Tensor q;  // [1, H, 1, D]
  Tensor k;  // [1, Hkv, 1, D]
  Tensor v;  // [1, Hkv, 1, D]
};

struct Case {
  int64_t key_heads, group, size;
  int64_t pairs;  // of coordinates that turn
  bool norm;
  std::vector<int64_t> counts;  // features; none: keys alone
  bool untied;
  ExactKeys exact;
  int64_t past;  // tokens before the first
};

constexpr ExactKeys few(KeyPolicy policy, int64_t block) {
  return {.keys = 37, .sinks = 4, .recent = 8, .block = block, .policy = policy};
}
ExactKeys ragged(KeyPolicy policy) {
  ExactKeys exact = few(policy, 16);
  exact.head_keys = {exact.keys, exact.keys + exact.block};
  exact.keys += exact.block;
  return exact;
}

class CudaTokenProgramKeys : public test::ProgramOnGpu {
 protected:
  // Queries, keys and values of the heads of a layer in one row.
  struct Row {
    int64_t key_heads, group, size;

    int64_t heads() const { return key_heads * group; }
    int64_t columns() const { return (heads() + 2 * key_heads) * size; }
    TokenHeads of(const Tensor& x) const {
      const auto part = [&](int64_t first, int64_t count) {
        return view_heads(x, {first * size, size}, 1, count, size);
      };
      return {part(0, heads()), part(heads(), key_heads), part(heads() + key_heads, key_heads)};
    }
  };

  Placement placement_of(const Case& c) {
    Placement placement = {.epsilon = 1e-5};
    if (c.norm) {
      placement.q_norm = normal_tensor({c.size}, random);
      placement.k_norm = normal_tensor({c.size}, random);
    }
    if (c.pairs > 0) placement.frequencies = normal_tensor({c.pairs}, random);
    return placement;
  }
  void place_in(TokenProgram& program, Placement placement) {
    for (Tensor* x : {&placement.q_norm, &placement.k_norm, &placement.frequencies})
      *x = kept(x->to(gpu));
    if (placement.q_norm.defined() || placement.frequencies.defined())
      program.place_heads(placement);
  }
  // A token's heads on the CPU, with keys and values as a cache has them.
  static TokenHeads placed(const TokenHeads& row, const Placement& placement, int64_t position) {
    TokenHeads out = {contiguous_heads(row.q), contiguous_heads(row.k), contiguous_heads(row.v)};
    Tensor where({1}, DType::kI64);
    where.data<int64_t>()[0] = position;
    if (placement.q_norm.defined() || placement.frequencies.defined())
      place_heads(placement, where, out.q, out.k);
    for (Tensor* x : {&out.k, &out.v}) *x = x->to(DType::kBF16).to(DType::kF32);
    return out;
  }
  // What is off where a token's numbers are. Norm and rotation may end on the other side of a
  // rounding to bf16: a logit is then off by a step of a coordinate of the key, and a value by one.
  static double tolerance(const Case& c) {
    const double exact = 64 * kEps * static_cast<double>(c.size) * 4 + test::kProgramFactor;
    return c.norm || c.pairs > 0 ? exact + 4 * test::kHalfStep : exact;
  }

  HybridAttentionState filled_state(const Case& c, const Features& features) {
    HybridAttentionState state = new_hybrid_attention_state(1, c.key_heads, c.size, DType::kF32,
                                                            Device(), features, c.exact);
    state.k = narrow(state.k.shape()).to(DType::kF32);
    state.v = narrow(state.v.shape()).to(DType::kF32);
    if (c.exact.policy == KeyPolicy::kAttended)
      for (int64_t i = 0; i < state.score.count(); ++i)
        state.score.data<float>()[i] = std::abs(static_cast<float>(random.normal()));
    if (features.empty()) return state;
    state.left.log_max = normal_tensor(state.left.log_max.shape(), random);
    state.left.b = normal_tensor(state.left.b.shape(), random);
    std::fill_n(state.left.a.data<float>(), state.left.a.count(), 1.5f);
    return state;
  }
  HybridAttentionState there(const HybridAttentionState& state) const {
    HybridAttentionState copy = {state.k.to(DType::kBF16).to(gpu),
                                 state.v.to(DType::kBF16).to(gpu),
                                 state.score.to(gpu),
                                 {}};
    if (state.left.a.defined())
      copy.left = {state.left.log_max.to(gpu), state.left.a.to(gpu), state.left.b.to(gpu)};
    return copy;
  }
  // Of every key head what is held after so many tokens.
  static void expect_same_held(const Tensor& found, const Tensor& expected, const Case& c,
                               int64_t tokens, double relative, const std::string& what) {
    const Tensor all = here(found);
    for (const HeadCache& cache : head_caches(c.exact, c.key_heads, tokens, 0)) {
      const auto part = [&](const Tensor& x) {
        const int64_t places = x.size(1);
        return x.reshape({places, x.count() / places})
            .slice(cache.first, cache.first + cache.before)
            .clone();
      };
      expect_close(part(all), part(expected), relative, what);
    }
  }
  void check(const Case& c, int64_t tokens);
};

void CudaTokenProgramKeys::check(const Case& c, int64_t tokens) {
  const Row row = {c.key_heads, c.group, c.size};
  const std::string what =
      fmt::format("{} heads of {}, groups of {}, {} pairs, {} features{}{}, {}", c.key_heads,
                  c.size, c.group, c.pairs, c.counts.size(), c.untied ? ", untied" : "",
                  c.exact.head_keys.empty() ? "" : ", ragged keys", name(c.exact.policy));
  Features features;
  if (!c.counts.empty())
    features =
        c.untied ? untied_features(c.counts, row.heads(), c.size) : tied_features(c.counts, c.size);
  const Features on_gpu = features.empty() ? features : features.to(gpu);
  const Tensor rows = table(row.columns(), tokens);
  const Placement placement = placement_of(c);
  HybridAttentionState state = filled_state(c, features), gpu_state = there(state);

  auto program = token_program(gpu);
  const TokenHeads heads = row.of(enter(*program, rows));
  place_in(*program, placement);
  const Tensor out = leave(*program, program->hybrid_attention_step(heads.q, heads.k, heads.v,
                                                                    on_gpu, c.exact, gpu_state));
  ASSERT_TRUE(program->finish()) << what;
  for (int64_t t = 0; t < tokens; ++t) {
    const TokenHeads token =
        placed(row.of(rows.slice(t, t + 1).to(DType::kF32)), placement, c.past + t);
    Tensor seen({1}, DType::kI64);
    seen.data<int64_t>()[0] = c.past + t;
    const Tensor expected =
        hybrid_attention_step(token.q, token.k, token.v, features, c.exact, state, seen);
    program->run(t, c.past + t);
    expect_close(out, expected.reshape({1, row.heads() * c.size}), tolerance(c),
                 fmt::format("{}, token {}", what, t));
    if (HasFailure()) return;
  }
  const int64_t after = c.past + tokens;
  expect_same_held(gpu_state.k, state.k, c, after, c.norm || c.pairs > 0 ? test::kHalfStep : 0,
                   what + ", keys");
  expect_same_held(gpu_state.v, state.v, c, after, 0, what + ", values");
  expect_same_held(gpu_state.score, state.score, c, after, tolerance(c), what + ", scores");
  if (features.empty()) return;
  expect_close(gpu_state.left.log_max, state.left.log_max, tolerance(c), what + ", log_max");
  expect_close(gpu_state.left.a, state.left.a, 2 * tolerance(c), what + ", a");
  expect_close(gpu_state.left.b, state.left.b, 2 * tolerance(c), what + ", b");
}

// Keys leave several times, from a cache that was empty or full. Caches and directions that fill
// several slots, and features of several rounds.
TEST_F(CudaTokenProgramKeys, AttendsToKeysAndFeatures) {
  constexpr KeyPolicy kAttended = KeyPolicy::kAttended, kRecent = KeyPolicy::kRecent;
  const Case cases[] = {
      {2, 1, 64, 0, false, {16, 40}, true, ragged(kAttended), 30},
      {2, 8, 64, 0, false, {16, 40}, true, few(kAttended, 16), 0},
      {2, 8, 64, 32, false, {64, 3}, true, few(kRecent, 16), 30},
      {2, 2, 64, 32, true, {1, 16, 140, 24}, false, ragged(kRecent), 30},
      {2, 2, 64, 0, false, {1, 16, 40, 24}, false, few(kAttended, 8), 30},
      {2, 3, 64, 0, false, {}, false, ragged(kAttended), 30},
      {2, 1, 128, 16, true, {33, 5}, true, few(kRecent, 8), 33},
      {2, 4, 128, 0, false, {70, 5}, true, few(kAttended, 1), 33},
      {2, 3, 24, 4, false, {5, 17}, true, few(kRecent, 4), 33},
      {2, 1, 8, 0, false, {5, 300}, false, few(kAttended, 2), 33},
      {1, 8, 64, 0, false, {140}, true, {.keys = 600, .block = 8}, 590},
      {2, 2, 128, 0, false, {9, 130}, true, {.keys = 300, .block = 64}, 295},
  };
  for (const Case& c : cases) check(c, 60);
}

// A cache that grows; its place in memory and the one that a token needs are far apart.
TEST_F(CudaTokenProgramKeys, AttendsToAllKeys) {
  for (const Case& c :
       {Case{2, 1, 64, 0, false, {}, false, {}, 0}, Case{4, 8, 64, 32, false, {}, false, {}, 300},
        Case{2, 3, 128, 0, true, {}, false, {}, 500}}) {
    const int64_t tokens = 40, capacity = c.past + tokens;
    const Row row = {c.key_heads, c.group, c.size};
    const Tensor rows = table(row.columns(), tokens);
    const Placement placement = placement_of(c);
    const Shape shape = {1, c.key_heads, capacity, c.size};
    Tensor k = narrow(shape), v = narrow(shape), k_there = k.to(gpu), v_there = v.to(gpu);
    k = k.to(DType::kF32), v = v.to(DType::kF32);
    auto program = token_program(gpu);
    const TokenHeads heads = row.of(enter(*program, rows));
    place_in(*program, placement);
    const Tensor out = leave(
        *program, program->softmax_attention_step(heads.q, heads.k, heads.v, k_there, v_there));
    ASSERT_TRUE(program->finish());
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t position = c.past + t;
      const TokenHeads token =
          placed(row.of(rows.slice(t, t + 1).to(DType::kF32)), placement, position);
      Tensor key = tokens_of(k, position, position + 1),
             value = tokens_of(v, position, position + 1);
      copy_heads(token.k, key);
      copy_heads(token.v, value);
      program->run(t, position);
      expect_close(
          out, softmax_attention(token.q, k, v, position + 1).reshape({1, row.heads() * c.size}),
          tolerance(c), fmt::format("heads of {}, token {}", c.size, position));
    }
  }
}

// What a kernel cannot do is said at the end.
TEST_F(CudaTokenProgramKeys, SaysWhichHeadsDoNotFit) {
  const auto fits = [&](int64_t group, int64_t size, int64_t keys) {
    const Row row = {1, group, size};
    auto program = token_program(gpu);
    const TokenHeads heads = row.of(enter(*program, table(row.columns())));
    const ExactKeys exact = {.keys = keys};
    HybridAttentionState state =
        new_hybrid_attention_state(1, 1, size, DType::kBF16, gpu, {}, exact);
    kept(state.k), kept(state.v), kept(state.score);
    program->hybrid_attention_step(heads.q, heads.k, heads.v, {}, exact, state);
    return program->finish();
  };
  EXPECT_TRUE(fits(8, 64, 64));
  EXPECT_FALSE(fits(9, 64, 64));
  EXPECT_FALSE(fits(1, 20, 64));
  EXPECT_FALSE(fits(8, 64, 8192));
}

}  // namespace
}  // namespace dofla
