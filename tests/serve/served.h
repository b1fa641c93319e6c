// What became of a request.
#pragma once

#include <future>
#include <memory>

#include "dofla/serve/engine.h"

namespace dofla::test {

struct Served {
  TokenIds ids;
  std::vector<ServedToken> tokens, prompt;
  EndReason reason = EndReason::kShutdown;
  Usage usage;
};

inline std::future<Served> serve(Engine& engine, GenerationRequest request,
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

}  // namespace dofla::test
