// An engine on a GPU. Rows of a product are rounded differently in batches of different sizes
// there: what is compared are distributions, and tokens where they are clear.
#include "dofla/serve/engine.h"

#include "dofla/linear/linear_model.h"
#include "dofla/serve/state_store.h"
#include "tests/serve/served.h"
#include "tests/support/fixtures.h"
#include "tests/support/gpu.h"
#include "tests/support/linear_fixture.h"

namespace dofla {
namespace {

using test::serve;
using test::Served;

class CudaEngine : public test::OnGpu {
 protected:
  std::vector<Transformer> models() const {
    const Checkpoint checkpoint(test::assets() / "wiki-mini");
    std::vector<Transformer> all;
    all.emplace_back(checkpoint, gpu);
    for (const FeatureSet& features :
         {test::ragged_features(checkpoint.config()),
          // Which keys leave must not depend on rounding.
          test::hybrid_features(checkpoint.config(), FeatureMap::kPrf, KeyPolicy::kRecent),
          test::mixed_features(checkpoint.config())})
      all.push_back(make_linear_model(checkpoint, features, gpu));
    return all;
  }
  static GenerationRequest request(const Transformer& model, int64_t which) {
    GenerationRequest made;
    for (int64_t i = 0; i < 3 + which * 5 % 40; ++i)
      made.prompt.push_back((5 + 31 * i + 17 * which) % model.config().vocabulary);
    made.max_tokens = 2 + which % 30;
    made.stop_at_end_of_text = false;
    made.sampler.temperature = which % 2 == 0 ? 0 : 0.8;
    made.sampler.seed = static_cast<uint64_t>(which);
    made.top_logprobs = 1;
    return made;
  }
  // Each token's log-probability against forward() over the whole text. About ten values of a layer
  // are rounded to bf16, as for CudaDecoder; a log-probability is the difference of two such
  // logits.
  static void expect_right(const Transformer& model, const GenerationRequest& request,
                           const Served& served, const std::string& what) {
    TokenIds text = request.prompt;
    text.insert(text.end(), served.ids.begin(), served.ids.end());
    const int64_t width = model.config().width;
    const Tensor hidden = model.forward(to_tensor(text)).reshape({std::ssize(text), width});
    const Tensor logits = here(model.logits(hidden));
    const double tolerance = 2 * 8 * 0x1p-9 *
                             std::sqrt(10 * static_cast<double>(model.config().layers)) *
                             test::largest(logits);
    for (size_t i = 0; i < served.tokens.size(); ++i) {
      const auto row = std::ssize(request.prompt) + static_cast<int64_t>(i) - 1;
      const float* at = logits.data<float>() + row * logits.size(1);
      double sum = 0;
      for (int64_t v = 0; v < logits.size(1); ++v) sum += std::exp(double{at[v]});
      const ServedToken& token = served.tokens[i];
      EXPECT_NEAR(*token.logprob, at[token.id] - std::log(sum), tolerance)
          << what << ", token " << i;
      if (request.sampler.temperature == 0) {
        EXPECT_EQ(token.top[0].id, token.id) << what;
        EXPECT_EQ(token.top[0].logprob, *token.logprob) << what;
      }
    }
  }
};

TEST_F(CudaEngine, ContinuesSequencesThatJoinAndLeave) {
  int64_t kind = 0;
  for (const Transformer& model : models()) {
    Engine engine(model, {.parallel = 7, .prompt_chunk = 16});
    std::vector<std::future<Served>> all;
    for (int64_t i = 0; i < 40; ++i) all.push_back(serve(engine, request(model, i)));
    std::vector<Served> served;
    for (auto& one : all) served.push_back(one.get());
    engine.drain();
    for (int64_t i = 0; i < 40; ++i)
      expect_right(model, request(model, i), served[static_cast<size_t>(i)],
                   fmt::format("kind {}, request {}", kind, i));
    ++kind;
  }
}

// From 1 to 100 sequences: every rounded number of rows is recorded, and memory grows and moves.
TEST_F(CudaEngine, TakesAnyNumberOfSequences) {
  for (const Transformer& model : models()) {
    Engine engine(model, {.parallel = 100});
    for (const int64_t count : {1, 2, 5, 33, 100, 3}) {
      std::vector<std::future<Served>> all;
      for (int64_t i = 0; i < count; ++i) all.push_back(serve(engine, request(model, i)));
      for (int64_t i = 0; i < count; ++i) {
        const Served served = all[static_cast<size_t>(i)].get();
        EXPECT_EQ(std::ssize(served.ids), request(model, i).max_tokens);
      }
    }
  }
}

TEST_F(CudaEngine, GoesOnFromStatesAndPromptsSeenBefore) {
  for (const Transformer& model : models()) {
    const auto states = std::make_shared<StateStore>(model, "test");
    std::optional<Engine> engine(std::in_place, model,
                                 EngineOptions{.prompt_chunk = 16, .states = states});
    GenerationRequest first = request(model, 6);
    first.prompt.resize(40, 3);
    first.keep_state = "kept";
    const Served once = serve(*engine, first).get();
    EXPECT_EQ(serve(*engine, first).get().usage.cached_tokens, 40);
    states->read("moved", states->write("kept"));
    GenerationRequest next = request(model, 6);
    next.prompt = {5, 6};
    next.from_state = "moved";
    const Served from_state = serve(*engine, next).get();
    engine.reset();
    GenerationRequest whole = first;
    whole.prompt.insert(whole.prompt.end(), once.ids.begin(), once.ids.end());
    whole.prompt.insert(whole.prompt.end(), {5, 6});
    expect_right(model, whole, from_state, "from a state");
  }
}

TEST_F(CudaEngine, GivesItsMemoryBack) {
  for (const Transformer& model : models()) {
    const int64_t before = bytes_in_use(gpu);
    {
      Engine engine(model, {.parallel = 20});
      std::vector<std::future<Served>> all;
      for (int64_t i = 0; i < 20; ++i) all.push_back(serve(engine, request(model, i)));
      for (auto& one : all) one.get();
    }
    EXPECT_EQ(bytes_in_use(gpu), before);
  }
}

}  // namespace
}  // namespace dofla
