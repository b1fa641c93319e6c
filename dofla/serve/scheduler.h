// What only the engine's thread touches: the sequences that run, their batch, and the prefix cache.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dofla/serve/batch.h"
#include "dofla/serve/engine.h"
#include "dofla/serve/sequence.h"

namespace dofla {

class Scheduler {
 public:
  Scheduler(const Transformer& model, const EngineOptions& options);

  int64_t running() const { return std::ssize(reading_) + std::ssize(decoding_); }
  EngineMetrics metrics() const;

  void add(std::unique_ptr<Sequence> sequence) { reading_.push_back(std::move(sequence)); }
  // Reads some of the prompts, then one token of every sequence that decodes.
  void step();
  // Ends the sequences for which this is true.
  void end(EndReason reason, const std::function<bool(const Sequence&)>& which);
  void end(Sequence& sequence, EndReason reason);

 private:
  void read_prompts();
  void begin(Sequence& sequence);
  void read_alike(int64_t& left);
  void read_one(int64_t& left);
  void decode();
  // A token of every sequence.
  void draw(const Tensor& logits,  // [B or more, V]
            std::span<const std::unique_ptr<Sequence>> sequences);
  void leave(size_t index);

  // Calls a sequence to its end where `work` returns a reason or throws. Whether it goes on.
  template <class Work>
  bool goes_on(Sequence& sequence, const Work& work);
  // Keeps what the model remembers of a sequence at its end, where that is wanted.
  void remember(const Sequence& sequence, const std::function<DecodeState()>& state);

  const Transformer& model_;
  const EngineOptions& options_;
  std::deque<std::unique_ptr<Sequence>> reading_;    // whose turn it is in front
  std::vector<std::unique_ptr<Sequence>> decoding_;  // numbered as in the batch
  Batch batch_;
  PrefixCache cache_;
  EngineMetrics metrics_;
};

}  // namespace dofla
