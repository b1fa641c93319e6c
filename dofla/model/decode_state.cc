#include "dofla/model/decode_state.h"

#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/ops/heads.h"

namespace dofla {

int64_t DecodeState::longest() const {
  return positions_.empty() ? 0 : std::ranges::max(positions_);
}

int64_t DecodeState::bytes() const {
  int64_t total = 0;
  for (const auto& layer : layers_) total += layer->bytes();
  return total;
}

Past DecodeState::past(int64_t batch, const Device& device) const {
  require(batch > 0, "a batch of {} sequences", batch);
  require(positions_.empty() || this->batch() == batch, "a state of {} sequences for a batch of {}",
          this->batch(), batch);
  Tensor tokens = Tensor::zeros({batch}, DType::kI64);
  std::ranges::copy(positions_, tokens.data<int64_t>());
  return {.tokens = tokens.to(device),
          .most = longest(),
          .equal = std::ranges::count(positions_, longest()) == this->batch()};
}

void DecodeState::advance(int64_t batch, int64_t tokens) {
  if (positions_.empty()) positions_.assign(static_cast<size_t>(batch), 0);
  for (int64_t& position : positions_) position += tokens;
}

void DecodeState::append_to(std::vector<Sequence>& sequences) const {
  for (int64_t i = 0; i < batch(); ++i) sequences.push_back({this, i});
}

DecodeState DecodeState::gather(const std::vector<Sequence>& sequences) {
  const DecodeState& like = *sequences.front().state;
  DecodeState out({});
  for (const auto& [state, index] : sequences) {
    require(index >= 0 && index < state->batch(), "sequence {} of a state of {}", index,
            state->batch());
    require(state->layers_.size() == like.layers_.size(), "states of different models");
    out.positions_.push_back(state->positions_[static_cast<size_t>(index)]);
  }
  for (size_t layer = 0; layer < like.layers_.size(); ++layer) {
    std::vector<AttentionState::Sequence> from;
    from.reserve(sequences.size());
    for (const auto& [state, index] : sequences)
      from.push_back({state->layers_[layer].get(), index});
    out.layers_.push_back(like.layers_[layer]->gather(from));
  }
  return out;
}

DecodeState DecodeState::fork(int64_t copies) const {
  require(copies > 0, "{} copies of a state", copies);
  std::vector<Sequence> sequences;
  for (int64_t i = 0; i < copies; ++i) append_to(sequences);
  if (!sequences.empty()) return gather(sequences);
  DecodeState empty({});
  for (const auto& layer : layers_) empty.layers_.push_back(layer->gather({}));
  return empty;
}

DecodeState DecodeState::select(const std::vector<int64_t>& sequences) const {
  require(!sequences.empty(), "a state of no sequences");
  std::vector<Sequence> chosen;
  chosen.reserve(sequences.size());
  for (const int64_t index : sequences) chosen.push_back({this, index});
  return gather(chosen);
}

DecodeState DecodeState::join(const std::vector<const DecodeState*>& states) {
  std::vector<Sequence> sequences;
  for (const DecodeState* state : states) {
    require(state->batch() > 0, "join: a state that has seen no token");
    state->append_to(sequences);
  }
  require(!sequences.empty(), "join: no states");
  return gather(sequences);
}

DecodeState DecodeState::transform(const AttentionState::Change& change) const {
  DecodeState out({});
  out.positions_ = positions_;
  for (const auto& layer : layers_) out.layers_.push_back(layer->transform(change));
  return out;
}

std::vector<Tensor> DecodeState::tensors() const {
  std::vector<Tensor> all;
  transform([&](const Tensor& tensor) { return all.emplace_back(tensor); });
  return all;
}

DecodeState DecodeState::share(int64_t begin, int64_t end) const {
  require(begin >= 0 && begin < end && end <= batch(), "sequences {} to {} of a state of {}", begin,
          end, batch());
  DecodeState out = transform([&](const Tensor& tensor) { return tensor.slice(begin, end); });
  out.positions_ = {positions_.begin() + begin, positions_.begin() + end};
  return out;
}

void DecodeState::put(int64_t to, const DecodeState& source, int64_t from) {
  require(to >= 0 && to < batch() && from >= 0 && from < source.batch(),
          "sequence {} of {} over sequence {} of {}", from, source.batch(), to, batch());
  const std::vector<Tensor> targets = tensors(), sources = source.tensors();
  require(targets.size() == sources.size(), "states of different models");
  for (size_t i = 0; i < targets.size(); ++i) {
    Tensor target = targets[i].slice(to, to + 1);
    const Tensor row = sources[i].slice(from, from + 1);
    if (target.shape() == row.shape()) {
      target.assign(row);
      continue;
    }
    // Caches with space for different numbers of tokens.
    require(target.rank() == 4 && row.rank() == 4, "states of different models");
    const int64_t tokens = std::min(target.size(2), row.size(2));
    require(source.positions_[static_cast<size_t>(from)] <= tokens, "no space for {} tokens",
            source.positions_[static_cast<size_t>(from)]);
    Tensor kept = tokens_of(target, 0, tokens);
    copy_heads(tokens_of(row, 0, tokens), kept);
  }
  positions_[static_cast<size_t>(to)] = source.positions_[static_cast<size_t>(from)];
}

}  // namespace dofla
