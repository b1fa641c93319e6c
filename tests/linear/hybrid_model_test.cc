// Models with exact keys and features in one softmax, as the rest of the library meets them.
#include <gtest/gtest.h>

#include "dofla/linear/hybrid_attention.h"
#include "dofla/linear/linear_model.h"
#include "dofla/ops/heads.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

class HybridModel : public testing::TestWithParam<std::tuple<std::string, KeyPolicy>> {
 protected:
  const Checkpoint teacher{test::fixtures() / std::get<0>(GetParam())};
  const ModelConfig config = teacher.config();
  const FeatureSet features =
      test::hybrid_features(config, FeatureMap::kUntied, std::get<1>(GetParam()));
  const Transformer model = make_linear_model(teacher, features);
  const Tensor ids = Safetensors(teacher.folder() / "expected.safetensors").tensor("input_ids");
  const int64_t tokens = ids.size(1);

  Tensor go_on(DecodeState& state, int64_t row, int64_t begin, int64_t end) const {
    const Tensor all = ids.slice(row, row + 1).reshape({tokens});
    return model
        .forward(all.slice(begin, end).reshape({1, end - begin}), {.state = &state, .observer = {}})
        .reshape({end - begin, config.width});
  }
  Tensor whole(int64_t row) const {
    return model.forward(ids.slice(row, row + 1)).reshape({tokens, config.width});
  }
  double tolerance(const Tensor& reference) const {
    return test::forward_tolerance(config, reference);
  }
};

TEST_P(HybridModel, DecodingTokenByTokenGivesTheSameAsOneCall) {
  const Tensor expected = whole(0);
  DecodeState state = model.new_state();
  for (int64_t t = 0; t < tokens; ++t) {
    const Tensor expected_row = expected.slice(t, t + 1);
    test::expect_near(go_on(state, 0, t, t + 1), expected_row, tolerance(expected),
                      fmt::format("token {}", t));
  }
}

// The state has one size from the first token on. A CPU keeps keys and values in 32 bits, where
// state_bytes() counts 16.
TEST_P(HybridModel, TheStateDoesNotGrow) {
  int64_t keys = 0;
  for (const ExactKeys& exact : features.exact) keys += exact.total_keys(config.kv_heads);
  const int64_t halves = keys * 2 * config.head_size * 2;
  DecodeState state = model.new_state();
  for (int64_t t = 0; t < 20; ++t) {
    go_on(state, 0, t, t + 1);
    EXPECT_EQ(state.bytes(), state_bytes(features, config) + halves) << t;
  }
}

// Before, at and after the token at which the cache is full, and within a block.
TEST_P(HybridModel, ASequenceCanBeSplitAnywhere) {
  const Tensor expected = whole(0);
  for (const int64_t cut : {1, 7, 8, 9, 12, 13, 40, 69}) {
    DecodeState state = model.new_state();
    go_on(state, 0, 0, cut);
    const Tensor rest = go_on(state, 0, cut, tokens);
    test::expect_near(rest, expected.slice(cut, tokens), tolerance(expected),
                      fmt::format("split at {}", cut));
  }
}

TEST_P(HybridModel, LaterTokensChangeNothingBefore) {
  const int64_t cut = tokens / 2;
  Tensor changed = ids.slice(0, 1).clone();
  for (int64_t t = cut; t < tokens; ++t)
    changed.data<int64_t>()[t] = (changed.data<int64_t>()[t] + 1) % config.vocabulary;
  const Tensor a = whole(0).slice(0, cut);
  const Tensor b = model.forward(changed).reshape({tokens, config.width}).slice(0, cut);
  test::expect_near(b, a, tolerance(a), "before the change");
}

// The heads that go with key head `head` of `of`, [B, X / of, T, D].
Tensor heads_with(const Tensor& x, int64_t head, int64_t of) {
  const int64_t each = x.size(1) / of;
  return contiguous_heads(x.view({x.size(0), each, x.size(2), x.size(3)}, head * each * x.step(1),
                                 {x.step(0), x.step(1), x.step(2), 1}));
}

// The features of one key head.
Features features_with(const Features& all, int64_t head, int64_t of) {
  if (all.empty()) return {};
  const int64_t each = all.heads() / of, group = all.group();
  const auto first = static_cast<size_t>(head * each), end = static_cast<size_t>((head + 1) * each);
  const auto rows = [](const Tensor& x, const std::vector<int64_t>& offsets, size_t from,
                       size_t to) { return x.slice(offsets[from], offsets[to]).clone(); };
  Features own = {{all.counts.begin() + head * each, all.counts.begin() + (head + 1) * each},
                  rows(all.z, all.offsets(), first, end),
                  rows(all.log_alpha, all.offsets(), first, end)};
  if (!all.untied()) return own;
  own.u = rows(all.u, all.query_offsets(), first * static_cast<size_t>(group),
               end * static_cast<size_t>(group));
  own.norm_weight = all.norm_weight.slice(head * each, (head + 1) * each).clone();
  return own;
}

// A key head attends as if it were alone, whatever the others hold.
TEST_P(HybridModel, KeyHeadsMayHoldDifferentNumbersOfKeys) {
  const ExactKeys exact = test::ragged_keys(config, std::get<1>(GetParam()));
  const FeatureSet tied = test::ragged_features(config);
  const int64_t of = config.kv_heads, group = config.heads / of, size = config.head_size;
  for (const Features& all : {features.layers[1], tied.layers[1], Features()}) {
    Random random(1);
    const Tensor q = test::normal_tensor({2, config.heads, 31, size}, random),
                 k = test::normal_tensor({2, of, 31, size}, random),
                 v = test::normal_tensor({2, of, 31, size}, random),
                 grad = test::normal_tensor({2, 31, config.heads, size}, random);
    const auto attention = make_attention(config, all, exact);
    AttentionTape tape;
    const Tensor out = attention->forward({q, k, v}, {}, &tape);
    const AttentionGradients gradients = attention->backward({q, k, v}, tape, grad, {});
    for (int64_t h = 0; h < of; ++h) {
      const Features own = features_with(all, h, of);
      const ExactKeys keys = exact.of_head(h);
      const auto part = [&](const Tensor& x) { return heads_with(x, h, of); };
      const auto rows_of = [&](const Tensor& rows) {
        return part(contiguous_heads(heads_of_rows(rows, 0, 31)));
      };
      Tensor own_grad({2, 31, group, size});
      Tensor to = heads_of_rows(own_grad, 0, 31);
      copy_heads(rows_of(grad), to);
      AttentionTape own_tape;
      const Tensor expected =
          hybrid_attention(part(q), part(k), part(v), own, keys, nullptr, 0, &own_tape);
      EXPECT_TRUE(test::same_bits(rows_of(out), contiguous_heads(heads_of_rows(expected, 0, 31))));
      const LinearAttentionGradients slopes =
          hybrid_attention_backward(part(q), part(k), part(v), own, keys, own_grad, own_tape);
      // Rows of padding change how the sums of a chunk are split, and these its gradients'
      // rounding.
      const auto expect_close = [&](const Tensor& found, const Tensor& wanted, const char* what) {
        test::expect_near(found, wanted, tolerance(wanted), fmt::format("{}, head {}", what, h));
      };
      expect_close(part(gradients.q), slopes.q, "q");
      EXPECT_TRUE(test::same_bits(part(gradients.k), slopes.k)) << h;
      EXPECT_TRUE(test::same_bits(part(gradients.v), slopes.v)) << h;
      if (all.empty()) continue;
      const auto first = static_cast<size_t>(h * all.heads() / of),
                 end = static_cast<size_t>((h + 1) * all.heads() / of);
      expect_close(gradients.features.z.slice(all.offsets()[first], all.offsets()[end]).clone(),
                   slopes.features.z, "z");
    }
  }
}

// Sequences of different lengths evict at different tokens.
TEST_P(HybridModel, ABatchOfDifferentLengthsIsItsSequences) {
  DecodeState a = model.new_state(), b = model.new_state();
  go_on(a, 0, 0, 19);
  go_on(b, 1, 0, 6);
  DecodeState both = DecodeState::join({&a, &b});
  Tensor next({2, 5}, DType::kI64);
  for (int64_t t = 0; t < 5; ++t) {
    next.data<int64_t>()[t] = ids.data<int64_t>()[19 + t];
    next.data<int64_t>()[5 + t] = ids.data<int64_t>()[tokens + 6 + t];
  }
  const Tensor found = model.forward(next, {.state = &both, .observer = {}});  // [2, 5, C]
  for (const auto& [row, begin] : {std::pair<int64_t, int64_t>{0, 19}, {1, 6}}) {
    const Tensor expected = whole(row).slice(begin, begin + 5);
    test::expect_near(found.slice(row, row + 1).reshape({5, config.width}), expected,
                      tolerance(expected), fmt::format("sequence {}", row));
  }
}

TEST_P(HybridModel, AForkRollsBack) {
  DecodeState state = model.new_state();
  go_on(state, 0, 0, 21);
  DecodeState kept = state.fork();
  const Tensor a = go_on(state, 0, 21, 34);
  const Tensor b = go_on(kept, 0, 21, 34);
  EXPECT_TRUE(test::same_bits(a, b));
}

TEST_P(HybridModel, ASavedModelIsTheSameModel) {
  const Tensor expected = model.forward(ids);
  const test::ScratchFolder scratch, trained;
  write_linear_model(scratch.path(), teacher, features, Json::object());
  const Checkpoint saved(scratch.path());
  EXPECT_EQ(load_features(saved).exact, features.exact);
  EXPECT_EQ(load_features(saved).counts(), features.counts());
  EXPECT_TRUE(test::same_bits(load_model(saved).forward(ids), expected));
  // A model that was trained keeps them.
  write_trained_model(trained.path(), saved, load_model(saved), Json::object());
  EXPECT_EQ(load_features(Checkpoint(trained.path())).exact, features.exact);
  EXPECT_TRUE(test::same_bits(load_model(Checkpoint(trained.path())).forward(ids), expected));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, HybridModel,
                         testing::Combine(testing::Values("gpt2", "qwen3"),
                                          testing::Values(KeyPolicy::kAttended,
                                                          KeyPolicy::kRecent)),
                         [](const auto& model) {
                           return std::get<0>(model.param) + "_" +
                                  std::string(name(std::get<1>(model.param)));
                         });

}  // namespace
}  // namespace dofla
