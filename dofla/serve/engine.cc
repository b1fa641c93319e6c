#include "dofla/serve/engine.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "dofla/core/parallel.h"
#include "dofla/serve/scheduler.h"
#include "dofla/serve/state_store.h"

namespace dofla {

Engine::Engine(const Transformer& model, EngineOptions options)
    : model_(model), options_(std::move(options)) {
  require(options_.parallel > 0 && options_.prompt_chunk > 0 && options_.queue >= 0 &&
              options_.cache_memory >= 0,
          "engine: parallel {}, prompt chunk {}, queue {}, cache memory {}", options_.parallel,
          options_.prompt_chunk, options_.queue, options_.cache_memory);
  end_team();  // the caller has loaded the model, and now it is this thread that computes
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  {
    const std::lock_guard held(mutex_);
    draining_ = stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Engine::RequestId Engine::submit(GenerationRequest request) {
  std::shared_ptr<const Snapshot> from;
  if (!request.from_state.empty() || !request.keep_state.empty())
    require(options_.states != nullptr, "this engine keeps no states");
  if (!request.from_state.empty()) from = options_.states->find(request.from_state);
  if (!request.keep_state.empty()) StateStore::require_name(request.keep_state);
  auto sequence = std::make_unique<Sequence>(model_, std::move(request), std::move(from));

  const std::lock_guard held(mutex_);
  if (draining_) throw Error("no more requests are taken: the engine is shutting down");
  // Those that can run at once do not wait.
  const int64_t free = std::max<int64_t>(0, options_.parallel - metrics_.running);
  if (std::ssize(waiting_) >= options_.queue + free)
    throw QueueFull(fmt::format("{} requests wait already: try again later", waiting_.size()));
  sequence->set_id(next_id_);
  waiting_.push_back(std::move(sequence));
  metrics_.waiting = std::ssize(waiting_);
  changed_.notify_all();
  return next_id_++;
}

void Engine::cancel(RequestId id) {
  const std::lock_guard held(mutex_);
  if (id == 0 || id >= next_id_) return;
  cancelled_.push_back(id);
  changed_.notify_all();
}

void Engine::drain() {
  std::unique_lock held(mutex_);
  draining_ = true;
  changed_.wait(held, [&] { return waiting_.empty() && metrics_.running == 0; });
}

EngineMetrics Engine::metrics() const {
  const std::lock_guard held(mutex_);
  return metrics_;
}

// Moves what may run to the scheduler and what is to end before it ever ran to `ended`.
void Engine::admit(Scheduler& scheduler, const std::vector<RequestId>& cancelled,
                   std::vector<std::unique_ptr<Sequence>>& ended) {
  std::erase_if(waiting_, [&](std::unique_ptr<Sequence>& sequence) {
    const bool out = stopping_ || std::ranges::find(cancelled, sequence->id()) != cancelled.end();
    if (out) ended.push_back(std::move(sequence));
    return out;
  });
  while (!waiting_.empty() && scheduler.running() < options_.parallel) {
    scheduler.add(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void Engine::publish(const Scheduler& scheduler) {
  metrics_ = scheduler.metrics();
  metrics_.waiting = std::ssize(waiting_);
}

void Engine::compute(const std::function<void()>& work) const {
  if (options_.turn)
    options_.turn->run(work);
  else
    work();
}

void Engine::run() {
  std::optional<Scheduler> scheduler(std::in_place, model_, options_);
  for (bool stopping = false; !stopping;) {
    std::vector<std::unique_ptr<Sequence>> ended;
    std::vector<RequestId> cancelled;
    {
      std::unique_lock held(mutex_);
      publish(*scheduler);
      changed_.notify_all();  // those that drain
      changed_.wait(held, [&] {
        return stopping_ || !waiting_.empty() || !cancelled_.empty() || scheduler->running() > 0;
      });
      stopping = stopping_;
      cancelled = std::exchange(cancelled_, {});
      admit(*scheduler, cancelled, ended);
      publish(*scheduler);
    }
    compute([&] {
      const EndReason reason = stopping ? EndReason::kShutdown : EndReason::kCancelled;
      for (const auto& sequence : ended) scheduler->end(*sequence, reason);
      if (stopping || !cancelled.empty())
        scheduler->end(reason, [&](const Sequence& sequence) {
          return stopping || std::ranges::find(cancelled, sequence.id()) != cancelled.end();
        });
      if (scheduler->running() > 0) scheduler->step();
    });
  }
  {
    const std::lock_guard held(mutex_);
    publish(*scheduler);
    changed_.notify_all();
  }
  compute([&] { scheduler.reset(); });  // gives the device's memory back
}

}  // namespace dofla
