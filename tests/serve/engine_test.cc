// Many sequences in one engine against generate(), one at a time.
#include "dofla/serve/engine.h"

#include <future>

#include <gtest/gtest.h>

#include "dofla/generate/generate.h"
#include "dofla/linear/linear_model.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"

namespace dofla {
namespace {

struct Served {
  TokenIds ids;
  std::vector<ServedToken> tokens, prompt;
  EndReason reason = EndReason::kShutdown;
  Usage usage;
};

// Submits a request and promises what becomes of it.
std::future<Served> serve(Engine& engine, GenerationRequest request,
                          Engine::RequestId* id = nullptr) {
  auto promise = std::make_shared<std::promise<Served>>();
  auto served = std::make_shared<Served>();
  request.on_prompt = [=](std::vector<ServedToken> tokens) { served->prompt = std::move(tokens); };
  const auto on_token = request.on_token;
  request.on_token = [=](const ServedToken& token) {
    served->ids.push_back(token.id);
    served->tokens.push_back(token);
    return !on_token || on_token(token);
  };
  request.on_end = [=](EndReason reason, const Usage& usage) {
    served->reason = reason;
    served->usage = usage;
    promise->set_value(std::move(*served));
  };
  request.on_error = [=](std::exception_ptr error) { promise->set_exception(error); };
  std::future<Served> future = promise->get_future();
  const Engine::RequestId given = engine.submit(std::move(request));
  if (id != nullptr) *id = given;
  return future;
}

TEST(Engine, ContinuesASequenceAsGenerateDoes) {
  const Checkpoint checkpoint(test::fixtures() / "llama");
  const Transformer model(checkpoint);
  const TokenIds prompt = test::as_vector(test::some_ids(model.config(), 1, 5));
  GenerationRequest request;
  request.prompt = prompt;
  request.max_tokens = 12;
  request.stop_at_end_of_text = false;
  request.sampler.seed = 3;
  const TokenIds expected =
      generate(model, prompt,
               {.max_tokens = 12, .stop_at_end_of_text = false, .sampler = {.seed = 3}})
          .ids;
  Engine engine(model);
  const Served served = serve(engine, request).get();
  EXPECT_EQ(served.ids, expected);
  EXPECT_EQ(served.reason, EndReason::kMaxTokens);
}

}  // namespace
}  // namespace dofla
