#include "dofla/generate/decoder.h"

#include <algorithm>

#include "dofla/core/error.h"

namespace dofla {

Decoder::Decoder(const Transformer& model, DecodeState state, int64_t batch, int64_t capacity)
    : model_(model), batch_(batch), state_(std::move(state)) {
  state_.past(batch, Device());  // throws unless it is of so many
  state_.advance(batch, 0);
  if (!model.device().is_cuda()) return;
  inputs_ = Tensor::zeros({2, batch}, DType::kI64, model.device());
  reserve(std::max(state_.longest() + 1, capacity));
  write_down();
}

// Doubles, so that a recording lasts.
bool Decoder::reserve(int64_t tokens) {
  if (tokens <= capacity_) return false;
  capacity_ =
      std::max(tokens, std::min(std::max<int64_t>(64, 2 * capacity_), model_.config().context));
  return model_.reserve(state_, batch_, capacity_);
}

Tensor Decoder::logits_by(Executor& executor) const {
  return executor.dense(model_.run(executor), model_.head(), DType::kF32);
}

// For the memory that the states have now.
void Decoder::write_down() {
  recording_.reset();
  if (!write_program()) record();
}

bool Decoder::write_program() {
  program_ = nullptr;
  if (batch_ != 1) return false;
  program_ = token_program(model_.device());
  ProgramExecutor executor(*program_, state_);
  logits_ = logits_by(executor);
  if (executor.complete() && program_->finish()) return true;
  program_ = nullptr;
  return false;
}

// Positions are read from the GPU's memory, and every sequence may fill its states.
void Decoder::record() {
  const Past past = {
      .tokens = inputs_.slice(1, 2).reshape({batch_}), .most = capacity_ - 1, .equal = false};
  const Tensor ids = inputs_.slice(0, 1).reshape({batch_, 1});
  recording_.reset();
  // The first time kernels are loaded and chosen, which cannot be recorded: on a copy of the state,
  // because it reads a token.
  DecodeState copy = state_.fork();
  SequenceExecutor on_copy(ids, &copy, past), executor(ids, &state_, past);
  logits_by(on_copy);
  recording_.emplace(model_.device(), [&] { logits_ = logits_by(executor); });
}

void Decoder::check(const std::vector<int64_t>& ids) const {
  const int64_t vocabulary = model_.config().vocabulary, most = model_.most_tokens();
  require(static_cast<int64_t>(ids.size()) == batch_, "decoder: {} tokens for {} sequences",
          ids.size(), batch_);
  for (const int64_t id : ids)
    require(id >= 0 && id < vocabulary, "token id {} is outside the vocabulary of {}", id,
            vocabulary);
  require(state_.longest() < most, "{} tokens are more than the model's context of {}",
          state_.longest() + 1, most);
}

Tensor Decoder::step(const std::vector<int64_t>& ids) {
  check(ids);
  const std::vector<int64_t> positions = state_.positions();
  if (inputs_.defined() && reserve(state_.longest() + 1)) write_down();
  if (program_ != nullptr) {
    program_->run(ids[0], positions[0]);
    state_.advance(batch_, 1);
    return logits_;
  }
  Tensor inputs({2, batch_}, DType::kI64);
  std::ranges::copy(ids, inputs.data<int64_t>());
  std::ranges::copy(positions, inputs.data<int64_t>() + batch_);
  if (!recording_) {
    SequenceExecutor executor(inputs.slice(0, 1).reshape({batch_, 1}), &state_,
                              state_.past(batch_, Device()));
    Tensor logits = logits_by(executor);
    state_.advance(batch_, 1);
    return logits;
  }
  copy_bytes(Device(), inputs.raw(), model_.device(), inputs_.mutable_raw(), inputs.bytes());
  recording_->replay();
  state_.advance(batch_, 1);
  return logits_;
}

}  // namespace dofla
