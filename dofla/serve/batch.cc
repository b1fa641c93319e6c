#include "dofla/serve/batch.h"

#include <algorithm>
#include <bit>

#include "dofla/core/error.h"
#include "dofla/serve/snapshot.h"

namespace dofla {
namespace {

// What there is room for at first.
constexpr int64_t kFewestTokens = 64;
constexpr int64_t kFewestRows = 4;
// On a CPU more rows at a time are no faster, and the product of a row with a weight has the same
// bits in any company of up to so many: ops/cpu/weight_rows.h.
constexpr int64_t kRowsAtOnce = 64;

// 1, 2, 3, 4, 6, 8, 12, …: at most half as many again.
int64_t rounded_up(int64_t count) {
  const auto whole = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
  const int64_t between = whole / 4 * 3;
  return between >= count ? between : whole;
}

}  // namespace

Batch::Batch(const Transformer& model, int64_t most)
    : model_(model), most_(most), grows_(false), states_({}) {
  for (int64_t i = 0; i < model.config().layers; ++i) grows_ |= model.attention(i).grows();
}

// Both grow by steps, so that it happens seldom: on a GPU everything is then recorded again. States
// of fixed size get all their room there at once.
void Batch::make_room(int64_t sequences, int64_t tokens) {
  if (sequences <= room_ && tokens <= capacity_) return;
  int64_t room = room_, capacity = capacity_;
  if (sequences > room) {
    const bool at_once = model_.device().is_cuda() && !grows_;
    room = at_once ? most_ : std::min(most_, std::max({2 * room, sequences, kFewestRows}));
  }
  if (tokens > capacity) {
    const int64_t most = model_.most_tokens();
    const int64_t doubled = grows_ ? std::max(kFewestTokens, 2 * capacity) : most;
    capacity = std::max(tokens, std::min(doubled, most));
  }
  decoders_.clear();
  DecodeState larger = model_.new_state();
  model_.reserve(larger, room, capacity);
  for (int64_t i = 0; i < size_; ++i) larger.put(i, states_, i);
  states_ = std::move(larger);
  room_ = room;
  capacity_ = capacity;
}

void Batch::place(int64_t index, int64_t tokens) {
  std::vector<int64_t> positions = states_.positions();
  positions[static_cast<size_t>(index)] = tokens;
  states_.set_positions(std::move(positions));
}

void Batch::join(const DecodeState& one) {
  require(one.batch() == 1 && size_ < most_, "batch: {} sequences to {} of {}", one.batch(), size_,
          most_);
  make_room(size_ + 1, one.longest() + 1);
  states_.put(size_, one, 0);
  ++size_;
}

void Batch::leave(int64_t index) {
  require(index >= 0 && index < size_, "batch: sequence {} of {}", index, size_);
  --size_;
  if (index < size_) states_.put(index, states_, size_);
  place(size_, 0);
}

void Batch::clear() {
  decoders_.clear();
  states_ = DecodeState({});
  size_ = room_ = capacity_ = 0;
}

DecodeState Batch::copy(int64_t index) const {
  return copy_of(model_, states_, index, states_.positions()[static_cast<size_t>(index)]);
}

Tensor Batch::step(const std::vector<int64_t>& ids) {
  require(size_ > 0 && std::ssize(ids) == size_, "batch: {} tokens for {} sequences", ids.size(),
          size_);
  make_room(size_, states_.longest() + 1);
  Tensor logits = model_.device().is_cuda() ? step_on_gpu(ids) : step_on_cpu(ids);
  std::vector<int64_t> positions = states_.positions();
  for (int64_t i = 0; i < size_; ++i) ++positions[static_cast<size_t>(i)];
  states_.set_positions(std::move(positions));
  return logits;
}

Tensor Batch::step_on_cpu(const std::vector<int64_t>& ids) {
  const auto part = [&](int64_t begin, int64_t end) {
    return Decoder(model_, states_.share(begin, end), end - begin)
        .step({ids.begin() + begin, ids.begin() + end});
  };
  if (size_ <= kRowsAtOnce) return part(0, size_);
  Tensor logits({size_, model_.config().vocabulary});
  for (int64_t begin = 0; begin < size_; begin += kRowsAtOnce) {
    const int64_t end = std::min(begin + kRowsAtOnce, size_);
    Tensor rows = logits.slice(begin, end);
    rows.assign(part(begin, end));
  }
  return logits;
}

Tensor Batch::step_on_gpu(std::vector<int64_t> ids) {
  const int64_t rows = std::min(rounded_up(size_), room_);
  std::unique_ptr<Decoder>& decoder = decoders_[rows];
  if (!decoder)
    decoder = std::make_unique<Decoder>(model_, states_.share(0, rows), rows, capacity_);
  decoder->set_positions({states_.positions().begin(), states_.positions().begin() + rows});
  ids.resize(static_cast<size_t>(rows), 0);
  return decoder->step(ids);
}

}  // namespace dofla
