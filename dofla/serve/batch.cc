#include "dofla/serve/batch.h"

#include <numeric>

namespace dofla {

int64_t Batch::bytes() const {
  int64_t total = decoder_ ? decoder_->state().bytes() : 0;
  for (const DecodeState& state : joining_) total += state.bytes();
  return total;
}

void Batch::join(DecodeState one) {
  joining_.push_back(std::move(one));
  ++size_;
}

void Batch::leave(int64_t index) {
  const int64_t kept = std::ssize(kept_);
  if (index < kept)
    kept_.erase(kept_.begin() + index);
  else
    joining_.erase(joining_.begin() + (index - kept));
  --size_;
}

void Batch::clear() {
  decoder_.reset();
  kept_.clear();
  joining_.clear();
  size_ = 0;
}

DecodeState Batch::copy(int64_t index) {
  const int64_t kept = std::ssize(kept_);
  if (index < kept) return decoder_->state().select({kept_[static_cast<size_t>(index)]});
  return joining_[static_cast<size_t>(index - kept)].fork();
}

void Batch::rebuild() {
  if (joining_.empty() && decoder_ && std::ssize(kept_) == decoder_->state().batch()) return;
  std::vector<DecodeState> parts;
  if (!kept_.empty()) parts.push_back(decoder_->state().select(kept_));
  for (DecodeState& state : joining_) parts.push_back(std::move(state));
  joining_.clear();
  decoder_.reset();
  std::vector<const DecodeState*> states;
  for (const DecodeState& part : parts) states.push_back(&part);
  decoder_.emplace(model_, DecodeState::join(states), size_);
  kept_.resize(static_cast<size_t>(size_));
  std::iota(kept_.begin(), kept_.end(), int64_t{0});
}

Tensor Batch::step(const std::vector<int64_t>& ids) {
  rebuild();
  return decoder_->step(ids);
}

}  // namespace dofla
