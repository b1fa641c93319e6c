#include "dofla/serve/engine.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "dofla/core/stopwatch.h"
#include "dofla/serve/batch.h"
#include "dofla/serve/sequence.h"

namespace dofla {

// A step of it reads some of the prompts and one token of every sequence that decodes.
struct Engine::Scheduler {
  const Transformer& model;
  const EngineOptions& options;
  std::vector<std::unique_ptr<Sequence>> reading = {}, decoding = {};  // the latter as in the batch
  Batch batch{model};
  EngineMetrics metrics = {};

  bool idle() const { return reading.empty() && decoding.empty(); }
  int64_t running() const { return std::ssize(reading) + std::ssize(decoding); }

  void step() {
    read_prompts();
    decode();
  }

  // Calls the sequence to an end wherever `work` says so or throws.
  template <class Work>
  bool goes_on(Sequence& sequence, const Work& work) {
    try {
      const std::optional<EndReason> reason = work();
      if (!reason) return true;
      sequence.end(*reason);
    } catch (...) {
      sequence.fail(std::current_exception());
    }
    ++metrics.requests;
    return false;
  }

  // As many tokens as a chunk has, of one prompt or of several short ones.
  void read_prompts() {
    const Stopwatch watch;
    int64_t left = options.prompt_chunk;
    while (!reading.empty() && left > 0) {
      Sequence& sequence = *reading.front();
      const bool alive = goes_on(sequence, [&]() -> std::optional<EndReason> {
        const int64_t tokens = sequence.read(options.prompt_chunk);
        left -= tokens;
        metrics.prompt_tokens += tokens;
        if (sequence.reading()) return std::nullopt;
        const std::optional<EndReason> reason = sequence.end_prompt();
        metrics.generated_tokens += sequence.usage().completion_tokens;
        if (!reason) batch.join(sequence.release());
        return reason;
      });
      if (alive && sequence.reading()) continue;
      if (alive) decoding.push_back(std::move(reading.front()));
      reading.erase(reading.begin());
    }
    metrics.prompt_seconds += watch.seconds();
  }

  void decode() {
    if (decoding.empty()) return;
    const Stopwatch watch;
    Tensor logits;
    try {
      std::vector<int64_t> ids;
      ids.reserve(decoding.size());
      for (const auto& sequence : decoding) ids.push_back(sequence->last());
      logits = batch.step(ids).to(Device());
    } catch (...) {
      fail_all(std::current_exception());
      return;
    }
    ++metrics.steps;
    metrics.generated_tokens += std::ssize(decoding);
    const auto vocabulary = static_cast<size_t>(logits.size(1));
    for (size_t i = 0, row = 0; i < decoding.size(); ++row) {
      Sequence& sequence = *decoding[i];
      const float* at = logits.data<float>() + row * vocabulary;
      if (goes_on(sequence, [&] { return sequence.draw({at, vocabulary}); }))
        ++i;
      else
        leave(i);
    }
    metrics.decode_seconds += watch.seconds();
  }

  void leave(size_t i) {
    batch.leave(static_cast<int64_t>(i));
    decoding.erase(decoding.begin() + static_cast<int64_t>(i));
  }

  void fail_all(const std::exception_ptr& error) {
    for (const auto& sequence : decoding) sequence->fail(error);
    metrics.requests += std::ssize(decoding);
    decoding.clear();
    batch.clear();
  }

  void end(Sequence& sequence, EndReason reason) {
    goes_on(sequence, [&] { return std::optional(reason); });
  }

  template <class Which>
  void end_some(EndReason reason, const Which& which) {
    for (size_t i = decoding.size(); i-- > 0;)
      if (which(*decoding[i])) {
        end(*decoding[i], reason);
        leave(i);
      }
    std::erase_if(reading, [&](const std::unique_ptr<Sequence>& sequence) {
      const bool chosen = which(*sequence);
      if (chosen) end(*sequence, reason);
      return chosen;
    });
  }
};

Engine::Engine(const Transformer& model, EngineOptions options)
    : model_(model), options_(std::move(options)) {
  require(options_.parallel > 0 && options_.prompt_chunk > 0 && options_.queue >= 0 &&
              options_.cache_memory >= 0,
          "engine: parallel {}, prompt chunk {}, queue {}, cache memory {}", options_.parallel,
          options_.prompt_chunk, options_.queue, options_.cache_memory);
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
  auto sequence = std::make_unique<Sequence>(model_, std::move(request));
  const std::lock_guard held(mutex_);
  if (draining_) throw Error("the engine takes no more requests: it is shutting down");
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
    scheduler.reading.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void Engine::run() {
  Scheduler scheduler = {.model = model_, .options = options_};
  while (true) {
    std::vector<std::unique_ptr<Sequence>> ended;
    std::vector<RequestId> cancelled;
    bool stopping = false;
    {
      std::unique_lock held(mutex_);
      publish(scheduler);
      changed_.notify_all();
      changed_.wait(held, [&] {
        return stopping_ || !waiting_.empty() || !cancelled_.empty() || !scheduler.idle();
      });
      stopping = stopping_;
      cancelled = std::exchange(cancelled_, {});
      admit(scheduler, cancelled, ended);
      publish(scheduler);
    }
    const EndReason reason = stopping ? EndReason::kShutdown : EndReason::kCancelled;
    for (const auto& sequence : ended) scheduler.end(*sequence, reason);
    scheduler.end_some(reason, [&](const Sequence& sequence) {
      return stopping || std::ranges::find(cancelled, sequence.id()) != cancelled.end();
    });
    if (stopping) break;
    if (scheduler.idle()) continue;
    std::unique_lock<Turn> turn;
    if (options_.turn) turn = std::unique_lock(*options_.turn);
    scheduler.step();
  }
  const std::lock_guard held(mutex_);
  publish(scheduler);
  changed_.notify_all();
}

void Engine::publish(const Scheduler& scheduler) {
  metrics_ = scheduler.metrics;
  metrics_.running = scheduler.running();
  metrics_.waiting = std::ssize(waiting_);
  metrics_.state_bytes = scheduler.batch.bytes();
}

}  // namespace dofla
