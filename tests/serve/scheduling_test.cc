// Queues, cancellation, ends and errors of an engine, from several threads.
#include <atomic>
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/model/finite.h"
#include "tests/serve/served.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"

namespace dofla {
namespace {

using test::serve;
using test::Served;

class EngineScheduling : public testing::Test {
 protected:
  GenerationRequest request(int64_t tokens) const {
    GenerationRequest made;
    made.prompt = {1, 2, 3};
    made.max_tokens = tokens;
    made.stop_at_end_of_text = false;
    return made;
  }
  // Holds the engine at its first token until it is opened.
  struct Gate {
    std::promise<void> reached, open;
    GenerationRequest hold(GenerationRequest made) {
      made.on_token = [this, first = true](const ServedToken&) mutable {
        if (std::exchange(first, false)) {
          reached.set_value();
          open.get_future().wait();
        }
        return true;
      };
      return made;
    }
  };

  const Checkpoint checkpoint{test::fixtures() / "gpt2"};
  const Transformer model{checkpoint};
};

TEST_F(EngineScheduling, RefusesBadRequests) {
  Engine engine(model);
  const auto refused = [&](auto change) {
    GenerationRequest bad = request(4);
    change(bad);
    EXPECT_THROW(engine.submit(bad), std::invalid_argument);
  };
  refused([](GenerationRequest& bad) { bad.prompt.clear(); });
  refused([](GenerationRequest& bad) { bad.prompt[1] = -1; });
  refused([&](GenerationRequest& bad) { bad.prompt[1] = model.config().vocabulary; });
  refused([](GenerationRequest& bad) { bad.max_tokens = -1; });
  refused([](GenerationRequest& bad) { bad.top_logprobs = 21; });
  refused([](GenerationRequest& bad) { bad.top_logprobs = -1; });
  refused([](GenerationRequest& bad) { bad.sampler.temperature = -1; });
  refused([](GenerationRequest& bad) { bad.sampler.top_p = 0; });
  refused([](GenerationRequest& bad) {
    bad.sampler.temperature = std::numeric_limits<double>::quiet_NaN();
  });
  refused([](GenerationRequest& bad) { bad.keep_state = "a"; });
  refused([](GenerationRequest& bad) { bad.from_state = "a"; });
  EXPECT_EQ(engine.metrics().requests, 0);
  EXPECT_THROW(Engine(model, {.parallel = 0}), std::invalid_argument);
  EXPECT_THROW(Engine(model, {.prompt_chunk = 0}), std::invalid_argument);
}

TEST_F(EngineScheduling, RefusesMoreThanItsQueueHolds) {
  Gate gate;
  Engine engine(model, {.parallel = 1, .queue = 2});
  auto running = serve(engine, gate.hold(request(3)));
  gate.reached.get_future().wait();
  auto second = serve(engine, request(3)), third = serve(engine, request(3));
  EXPECT_THROW(engine.submit(request(3)), QueueFull);
  EXPECT_EQ(engine.metrics().waiting, 2);
  gate.open.set_value();
  EXPECT_EQ(running.get().ids.size(), 3u);
  EXPECT_EQ(second.get().ids.size(), 3u);
  EXPECT_EQ(third.get().ids.size(), 3u);
  EXPECT_EQ(serve(engine, request(3)).get().ids.size(), 3u);
}

TEST_F(EngineScheduling, EndsWhatIsCancelledBetweenTokens) {
  Gate gate;
  Engine engine(model, {.parallel = 1, .queue = 2});
  Engine::RequestId running = 0, waiting = 0;
  auto first = serve(engine, gate.hold(request(20)), &running);
  gate.reached.get_future().wait();
  auto second = serve(engine, request(20), &waiting), third = serve(engine, request(2));
  engine.cancel(waiting);
  engine.cancel(running);
  engine.cancel(0);
  engine.cancel(12345);
  gate.open.set_value();
  const Served cancelled = first.get();
  EXPECT_EQ(cancelled.reason, EndReason::kCancelled);
  EXPECT_GE(cancelled.ids.size(), 1u);
  EXPECT_LE(cancelled.ids.size(), 2u) << "went on after the step in which it was cancelled";
  const Served never = second.get();
  EXPECT_EQ(never.reason, EndReason::kCancelled);
  EXPECT_TRUE(never.ids.empty());
  EXPECT_EQ(third.get().reason, EndReason::kMaxTokens);
  engine.cancel(running);  // has ended
}

TEST_F(EngineScheduling, StopsWhereTheCallerSaysSo) {
  Engine engine(model);
  GenerationRequest made = request(20);
  made.on_token = [count = 0](const ServedToken&) mutable { return ++count < 4; };
  const Served served = serve(engine, made).get();
  EXPECT_EQ(served.reason, EndReason::kStopped);
  EXPECT_EQ(served.ids.size(), 4u);
}

TEST_F(EngineScheduling, DrainsWhatItHasAndTakesNoMore) {
  Engine engine(model, {.parallel = 2});
  std::vector<std::future<Served>> all;
  for (int i = 0; i < 6; ++i) all.push_back(serve(engine, request(5)));
  engine.drain();
  for (auto& one : all) {
    ASSERT_EQ(one.wait_for(std::chrono::seconds(0)), std::future_status::ready);
    EXPECT_EQ(one.get().reason, EndReason::kMaxTokens);
  }
  EXPECT_THROW(engine.submit(request(1)), Error);
}

TEST_F(EngineScheduling, EndsEverythingWhenItGoes) {
  Gate gate;
  auto engine = std::make_unique<Engine>(model, EngineOptions{.parallel = 1});
  auto running = serve(*engine, gate.hold(request(50)));
  gate.reached.get_future().wait();
  auto waiting = serve(*engine, request(5));
  Engine& going = *engine;
  std::thread end([&] { engine.reset(); });
  // It holds at the gate, and goes for certain once it takes no more.
  for (bool takes = true; takes;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    try {
      going.submit(request(5));
    } catch (const QueueFull&) {
    } catch (const Error&) {
      takes = false;
    }
  }
  gate.open.set_value();
  end.join();
  EXPECT_EQ(running.get().reason, EndReason::kShutdown);
  EXPECT_EQ(waiting.get().reason, EndReason::kShutdown);
}

// A weight that is not a number at one position breaks those that get there, and no other.
TEST_F(EngineScheduling, EndsABrokenSequenceAlone) {
  NamedTensors changed;
  for (const std::string& name : checkpoint.names())
    if (name.find("wpe") != std::string::npos)
      changed.emplace_back(name, checkpoint.tensor(name).to(DType::kF32).clone());
  ASSERT_EQ(changed.size(), 1u);
  Tensor& positions = changed[0].second;
  positions.data<float>()[9 * positions.size(1)] = std::numeric_limits<float>::quiet_NaN();
  const Checkpoint broken = checkpoint.with(changed);
  const Transformer half(broken);
  Engine engine(half, {.cache_memory = 0});
  auto bad = serve(engine, request(12)), good = serve(engine, request(5));
  GenerationRequest scored = request(0);
  scored.prompt.assign(12, 4);
  scored.score_prompt = true;
  auto bad_prompt = serve(engine, scored);
  EXPECT_THROW(bad.get(), Error);
  EXPECT_THROW(bad_prompt.get(), Error);
  EXPECT_EQ(good.get().ids, generate(model, {1, 2, 3},
                                     {.max_tokens = 5, .stop_at_end_of_text = false, .sampler = {}})
                                .ids);
  EXPECT_EQ(serve(engine, request(5)).get().ids.size(), 5u);
  engine.drain();
  EXPECT_EQ(engine.metrics().running, 0);
}

TEST_F(EngineScheduling, ReadsOnlyThePromptWhereNoTokenIsAskedFor) {
  Engine engine(model);
  GenerationRequest made = request(0);
  made.score_prompt = true;
  made.top_logprobs = 2;
  const Served served = serve(engine, made).get();
  EXPECT_EQ(served.reason, EndReason::kMaxTokens);
  EXPECT_TRUE(served.ids.empty());
  EXPECT_EQ(served.prompt.size(), 3u);
}

// The decoding streams go on while a long prompt is read: between two chunks each gets a token.
TEST_F(EngineScheduling, DecodesBetweenTheChunksOfAPrompt) {
  Engine engine(model, {.prompt_chunk = 4});
  std::atomic<int> tokens = 0;
  std::promise<void> started;
  GenerationRequest stream = request(40);
  stream.on_token = [&](const ServedToken&) {
    if (++tokens == 2) started.set_value();
    return true;
  };
  auto decoding = serve(engine, stream);
  started.get_future().wait();
  GenerationRequest late = request(1);
  late.prompt.assign(24, 5);  // 6 chunks
  int before = 0, after = 0;
  before = tokens;
  late.on_token = [&](const ServedToken&) {
    after = tokens;
    return true;
  };
  serve(engine, late).get();
  decoding.get();
  EXPECT_GE(after - before, std::min(5, 40 - before));
}

TEST_F(EngineScheduling, EnginesTakeTurns) {
  const auto turn = std::make_shared<Turn>();
  Engine one(model, {.turn = turn}), two(model, {.turn = turn});
  std::vector<std::future<Served>> all;
  for (int i = 0; i < 8; ++i) all.push_back(serve(i % 2 == 0 ? one : two, request(10)));
  const TokenIds expected =
      generate(model, {1, 2, 3}, {.max_tokens = 10, .stop_at_end_of_text = false, .sampler = {}})
          .ids;
  for (auto& served : all) EXPECT_EQ(served.get().ids, expected);
}

// Joins, leaves, aborts and refusals from many threads: everything that was taken ends exactly
// once, and what ends by itself has the tokens of generate().
TEST_F(EngineScheduling, StandsManyCallers) {
  constexpr int kThreads = 4, kRequests = 40;
  Engine engine(model, {.parallel = 5, .prompt_chunk = 4, .queue = 6});
  std::atomic<int> taken = 0, ended = 0, refused = 0, wrong = 0;
  std::vector<TokenIds> expected;
  for (uint64_t seed = 0; seed < 8; ++seed)
    expected.push_back(
        generate(model, {1, 2, 3},
                 {.max_tokens = 9, .stop_at_end_of_text = false, .sampler = {.seed = seed}})
            .ids);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kThreads; ++caller)
    callers.emplace_back([&, caller] {
      Random random(static_cast<uint64_t>(caller));
      for (int i = 0; i < kRequests; ++i) {
        GenerationRequest made = request(9);
        made.sampler.seed = random.below(8);
        auto ids = std::make_shared<TokenIds>();
        const int64_t stop = random.below(4) == 0 ? static_cast<int64_t>(random.below(9)) + 1 : 9;
        made.on_token = [ids, stop](const ServedToken& token) {
          ids->push_back(token.id);
          return std::ssize(*ids) < stop;
        };
        made.on_end = [&, ids, seed = made.sampler.seed](EndReason, const Usage&) {
          const TokenIds& all = expected[seed];
          if (!std::equal(ids->begin(), ids->end(), all.begin())) ++wrong;
          ++ended;
        };
        made.on_error = [&](const std::exception_ptr&) { ++wrong; };
        try {
          const Engine::RequestId id = engine.submit(made);
          ++taken;
          if (random.below(3) == 0) engine.cancel(id);
        } catch (const QueueFull&) {
          ++refused;
        }
        if (i % 8 == 0) (void)engine.metrics();
      }
    });
  for (std::thread& caller : callers) caller.join();
  engine.drain();
  EXPECT_EQ(taken + refused, kThreads * kRequests);
  EXPECT_EQ(ended, taken);
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace dofla
