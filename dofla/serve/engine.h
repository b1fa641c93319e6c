// Continues many sequences at once: they join and leave one batch at token boundaries, and long
// prompts are read a chunk at a time between the tokens of the others. docs/serve.md.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "dofla/core/error.h"
#include "dofla/generate/generate.h"
#include "dofla/model/transformer.h"
#include "dofla/serve/request.h"
#include "dofla/serve/turn.h"

namespace dofla {

class StateStore;  // dofla/serve/state_store.h
class Scheduler;   // dofla/serve/scheduler.h
class Sequence;    // dofla/serve/sequence.h

struct EngineOptions {
  int64_t parallel = 64;                    // the most sequences at once
  int64_t prompt_chunk = kPromptChunk;      // tokens of prompts read between two decode steps
  int64_t queue = 256;                      // the most that wait; more are refused
  int64_t cache_memory = int64_t{1} << 28;  // bytes for states of prompts seen before; 0: none
  std::shared_ptr<Turn> turn = {};          // of all engines on one device; null: alone there
  std::shared_ptr<StateStore> states = {};  // for from_state and keep_state; null: refused
};

// Thrown by submit() where as many requests wait as may.
class QueueFull : public Error {
 public:
  using Error::Error;
};

struct EngineMetrics {
  int64_t running = 0, waiting = 0;              // sequences, now
  int64_t requests = 0;                          // that have ended, one way or another
  int64_t prompt_tokens = 0, cached_tokens = 0;  // of prompts: read, and not read again
  int64_t generated_tokens = 0;
  int64_t steps = 0;  // of the decode batch: generated_tokens / steps is its mean size
  double prompt_seconds = 0, decode_seconds = 0;  // spent reading prompts, and on decode steps
  int64_t cache_hits = 0, cache_entries = 0, cache_bytes = 0;
  int64_t state_bytes = 0;  // of the sequences in the decode batch
};

class Engine {
 public:
  using RequestId = uint64_t;

  // Starts its thread, and ends the OpenMP team of the calling one. The model must outlive it and
  // is not used by others meanwhile, but for engines that share a Turn.
  explicit Engine(const Transformer& model, EngineOptions options = {});
  ~Engine();  // ends what is left with kShutdown
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Throws std::invalid_argument on a request that cannot be met, NoSuchState (state_store.h),
  // QueueFull, and Error once the engine drains.
  RequestId submit(GenerationRequest request);
  void cancel(RequestId id);  // at the next token boundary; unknown ids are ignored
  void drain();               // takes no more; returns when all have ended
  EngineMetrics metrics() const;

 private:
  void run();
  void compute(const std::function<void()>& work) const;
  void admit(Scheduler& scheduler, const std::vector<RequestId>& cancelled,
             std::vector<std::unique_ptr<Sequence>>& ended);
  void publish(const Scheduler& scheduler);

  const Transformer& model_;
  const EngineOptions options_;

  mutable std::mutex mutex_;  // of all that follows
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Sequence>> waiting_;  // the oldest first
  std::vector<RequestId> cancelled_;
  EngineMetrics metrics_;
  RequestId next_id_ = 1;
  bool draining_ = false, stopping_ = false;

  std::thread thread_;
};

}  // namespace dofla
