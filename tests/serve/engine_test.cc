// Many sequences in one engine against generate(), which has one at a time: the very same tokens,
// whatever kinds of attention the layers have and whoever else is in the batch.
#include "dofla/serve/engine.h"

#include <array>
#include <cmath>
#include <tuple>

#include <gtest/gtest.h>

#include "dofla/linear/linear_model.h"
#include "dofla/ops/cross_entropy.h"
#include "tests/serve/served.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"

namespace dofla {
namespace {

using test::serve;
using test::Served;

enum class Kind { kSoftmax, kLinear, kHybrid, kMixed };

Transformer make_model(const Checkpoint& teacher, Kind kind) {
  switch (kind) {
    case Kind::kSoftmax:
      return Transformer(teacher);
    case Kind::kLinear:
      return make_linear_model(teacher, test::ragged_features(teacher.config()));
    case Kind::kHybrid:  // with different numbers of exact keys by head
      return make_linear_model(teacher, test::hybrid_features(teacher.config()));
    default:
      return make_linear_model(teacher, test::mixed_features(teacher.config()));
  }
}

// Prompts and options of every sort.
GenerationRequest some_request(const ModelConfig& config, int64_t which) {
  GenerationRequest request;
  for (int64_t i = 0; i < 1 + which * 7 % 19; ++i)
    request.prompt.push_back((5 + 31 * i + 17 * which) % config.vocabulary);
  request.max_tokens = 1 + which * 5 % 13;
  request.stop_at_end_of_text = false;
  request.sampler = {.temperature = which % 3 == 0 ? 0.0 : 0.9,
                     .top_k = which % 4 == 1 ? 7 : 0,
                     .top_p = which % 2 == 0 ? 1.0 : 0.9,
                     .seed = static_cast<uint64_t>(which)};
  return request;
}

TokenIds generated(const Transformer& model, const GenerationRequest& request) {
  return generate(model, request.prompt,
                  {.max_tokens = request.max_tokens,
                   .stop_at_end_of_text = request.stop_at_end_of_text,
                   .sampler = request.sampler})
      .ids;
}

class EngineModels : public testing::TestWithParam<std::tuple<std::string, Kind>> {
 protected:
  const Checkpoint teacher{test::fixtures() / std::get<std::string>(GetParam())};
  const Transformer model = make_model(teacher, std::get<Kind>(GetParam()));
};

TEST_P(EngineModels, GiveTheTokensOfGenerateInAnyCompany) {
  for (const int64_t parallel : {1, 3, 100}) {
    Engine engine(model, {.parallel = parallel});
    std::vector<std::future<Served>> all;
    for (int64_t i = 0; i < 24; ++i) all.push_back(serve(engine, some_request(model.config(), i)));
    for (int64_t i = 0; i < 24; ++i) {
      const GenerationRequest request = some_request(model.config(), i);
      const Served served = all[static_cast<size_t>(i)].get();
      EXPECT_EQ(served.ids, generated(model, request)) << "request " << i << " of " << parallel;
      EXPECT_EQ(served.usage.prompt_tokens, std::ssize(request.prompt));
      EXPECT_EQ(served.usage.completion_tokens, std::ssize(served.ids));
    }
    engine.drain();
    const EngineMetrics metrics = engine.metrics();
    EXPECT_EQ(metrics.running + metrics.waiting, 0);
    EXPECT_EQ(metrics.requests, 24);
  }
}

// A prompt in several chunks is read as generate() reads it where the chunks are the same, and
// gives the same distribution, up to rounding, where they are not.
TEST_P(EngineModels, ReadPromptsInChunks) {
  GenerationRequest request = some_request(model.config(), 4);
  const int64_t length = std::min<int64_t>(40, model.most_tokens() - 4);
  while (std::ssize(request.prompt) < length)
    request.prompt.push_back(std::ssize(request.prompt) % 11);
  request.max_tokens = 1;
  request.top_logprobs = 3;
  request.score_prompt = true;
  Engine whole(model);
  const Served expected = serve(whole, request).get();
  ASSERT_EQ(expected.prompt.size(), request.prompt.size());
  EXPECT_FALSE(expected.prompt[0].logprob.has_value());
  for (const int64_t chunk : {1, 3, 16}) {
    Engine engine(model, {.prompt_chunk = chunk});
    const Served found = serve(engine, request).get();
    ASSERT_EQ(found.prompt.size(), request.prompt.size());
    for (size_t i = 1; i < found.prompt.size(); ++i) {
      EXPECT_EQ(found.prompt[i].id, request.prompt[i]);
      EXPECT_NEAR(*found.prompt[i].logprob, *expected.prompt[i].logprob, 1e-3) << i;
      ASSERT_EQ(found.prompt[i].top.size(), 3u);
      EXPECT_NEAR(found.prompt[i].top[0].logprob, expected.prompt[i].top[0].logprob, 1e-3);
    }
  }
}

// Log-probabilities against a softmax in double precision of the logits of forward().
TEST_P(EngineModels, TellLogProbabilities) {
  GenerationRequest request = some_request(model.config(), 5);
  request.max_tokens = 4;
  request.top_logprobs = 5;
  request.score_prompt = true;
  request.sampler.temperature = 0;
  Engine engine(model);
  const Served served = serve(engine, request).get();
  std::vector<ServedToken> all = served.prompt;
  all.insert(all.end(), served.tokens.begin(), served.tokens.end());
  TokenIds ids;
  for (const ServedToken& token : all) ids.push_back(token.id);
  const Tensor hidden =
      model.forward(to_tensor(ids)).reshape({std::ssize(ids), model.config().width});
  const Tensor logits = model.logits(hidden);
  for (size_t i = 1; i < all.size(); ++i) {
    const float* row = logits.data<float>() + static_cast<int64_t>(i - 1) * logits.size(1);
    double sum = 0;
    for (int64_t v = 0; v < logits.size(1); ++v) sum += std::exp(double{row[v]});
    ASSERT_TRUE(all[i].logprob.has_value());
    EXPECT_NEAR(*all[i].logprob, row[all[i].id] - std::log(sum), 1e-3) << i;
    ASSERT_EQ(all[i].top.size(), 5u);
    for (size_t t = 0; t < 5; ++t) {
      EXPECT_NEAR(all[i].top[t].logprob, row[all[i].top[t].id] - std::log(sum), 1e-3);
      if (t > 0) {
        EXPECT_GE(all[i].top[t - 1].logprob, all[i].top[t].logprob);
      }
      if (all[i].top[t].id == all[i].id) {
        EXPECT_EQ(all[i].top[t].logprob, *all[i].logprob) << "not the same float";
      }
    }
  }
  for (const ServedToken& token : served.tokens) EXPECT_EQ(token.id, token.top[0].id);
}

// Going on from what was read before gives the same tokens, and reads less.
TEST_P(EngineModels, GoOnFromPromptsSeenBefore) {
  constexpr int64_t kChunk = 8;
  GenerationRequest request = some_request(model.config(), 3);
  request.prompt.clear();
  for (int64_t i = 0; i < 21; ++i)
    request.prompt.push_back((3 + 7 * i) % model.config().vocabulary);
  request.max_tokens = 5;
  Engine fresh(model, {.prompt_chunk = kChunk, .cache_memory = 0});
  Engine engine(model, {.prompt_chunk = kChunk});
  const Served first = serve(engine, request).get();
  EXPECT_EQ(first.usage.cached_tokens, 0);
  // The same again, as the n answers to one question are.
  for (const uint64_t seed : {3, 4}) {
    request.sampler.seed = seed;
    const Served again = serve(engine, request).get();
    EXPECT_EQ(again.ids, serve(fresh, request).get().ids);
    EXPECT_EQ(again.usage.cached_tokens, 21);
  }
  // Another one that begins alike: it is taken up between two chunks.
  request.prompt[18] = 1;
  const Served other = serve(engine, request).get();
  EXPECT_EQ(other.ids, serve(fresh, request).get().ids);
  EXPECT_EQ(other.usage.cached_tokens, 16);
  // The conversation goes on from the end of what was generated, whose last token is not read yet.
  request.prompt.insert(request.prompt.end(), other.ids.begin(), other.ids.end());
  request.prompt.push_back(2);
  request.top_logprobs = 0;
  const Served next = serve(engine, request).get(), expected = serve(fresh, request).get();
  EXPECT_EQ(next.usage.cached_tokens, 25);
  EXPECT_NEAR(*next.tokens[0].logprob, *expected.tokens[0].logprob, 1e-3);
  EXPECT_EQ(next.ids[0], expected.ids[0]);
  const EngineMetrics metrics = engine.metrics();
  EXPECT_EQ(metrics.cache_hits, 4);
  EXPECT_EQ(metrics.cached_tokens, 21 + 21 + 16 + 25);
  EXPECT_GT(metrics.cache_bytes, 0);
}

std::string name_of(const testing::TestParamInfo<EngineModels::ParamType>& param) {
  const auto& [model, kind] = param.param;
  constexpr std::array kNames = {"Softmax", "Linear", "Hybrid", "Mixed"};
  return model + kNames.at(static_cast<size_t>(kind));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, EngineModels,
                         testing::Combine(testing::Values("gpt2", "llama", "qwen3"),
                                          testing::Values(Kind::kSoftmax, Kind::kLinear,
                                                          Kind::kHybrid, Kind::kMixed)),
                         name_of);

// More sequences than rows that a CPU takes at a time.
TEST(Engine, TakesManySequences) {
  const Checkpoint checkpoint(test::fixtures() / "gpt2");
  const Transformer model(checkpoint);
  Engine engine(model, {.parallel = 150});
  std::vector<std::future<Served>> all;
  for (int64_t i = 0; i < 150; ++i) all.push_back(serve(engine, some_request(model.config(), i)));
  for (int64_t i = 0; i < 150; ++i)
    EXPECT_EQ(all[static_cast<size_t>(i)].get().ids,
              generated(model, some_request(model.config(), i)))
        << i;
}

// More tokens than logits exist of at a time, against the losses of evaluation.
TEST(Engine, ScoresLongPrompts) {
  const Checkpoint checkpoint(test::assets() / "wiki-mini");
  const Transformer model(checkpoint);
  constexpr int64_t kTokens = 170;
  GenerationRequest request;
  request.prompt = test::as_vector(test::some_ids(model.config(), 1, kTokens));
  request.max_tokens = 0;
  request.score_prompt = true;
  Engine engine(model, {.prompt_chunk = 100});
  const Served served = serve(engine, request).get();
  ASSERT_EQ(std::ssize(served.prompt), kTokens);
  const Tensor hidden =
      model.forward(to_tensor(request.prompt)).reshape({kTokens, model.config().width});
  Tensor targets({kTokens - 1}, DType::kI64);
  std::copy(request.prompt.begin() + 1, request.prompt.end(), targets.data<int64_t>());
  const Tensor loss = cross_entropy(hidden.slice(0, kTokens - 1), model.weights().head, targets);
  for (int64_t i = 1; i < kTokens; ++i) {
    const ServedToken& token = served.prompt[static_cast<size_t>(i)];
    EXPECT_EQ(token.id, request.prompt[static_cast<size_t>(i)]);
    EXPECT_NEAR(*token.logprob, -loss.data<float>()[i - 1], 1e-3) << i;
  }
}

TEST(Engine, EndsWithTheContext) {
  const Checkpoint checkpoint(test::fixtures() / "gpt2");
  const Transformer model(checkpoint);
  Engine engine(model);
  GenerationRequest request = some_request(model.config(), 2);
  request.max_tokens = 10 * model.config().context;
  const Served served = serve(engine, request).get();
  EXPECT_EQ(served.reason, EndReason::kContextFull);
  EXPECT_EQ(served.ids, generated(model, request));
  request.prompt.assign(static_cast<size_t>(model.config().context + 1), 1);
  EXPECT_THROW(engine.submit(request), std::invalid_argument);
}

TEST(Engine, EndsWithTheTextWhereItIsToldTo) {
  const Checkpoint checkpoint(test::fixtures() / "llama");
  const Transformer model(checkpoint);
  ASSERT_TRUE(model.config().end_of_text.has_value());
  Engine engine(model);
  int64_t ended = 0;
  for (int64_t i = 0; i < 60; ++i) {
    GenerationRequest request = some_request(model.config(), i);
    request.max_tokens = 30;
    request.sampler.temperature = 3;
    request.stop_at_end_of_text = true;
    const Served served = serve(engine, request).get();
    EXPECT_EQ(served.ids, generated(model, request));
    if (served.reason != EndReason::kEndOfText) continue;
    EXPECT_EQ(served.ids.back(), *model.config().end_of_text);
    ++ended;
  }
  EXPECT_GT(ended, 0) << "no text has ended: the test sees nothing";
}

}  // namespace
}  // namespace dofla
