#include "dofla/checkpoint/tokenizer/vocabulary.h"

#include "dofla/checkpoint/tokenizer/hash_bytes.h"
#include "dofla/core/error.h"

namespace dofla {

void Vocabulary::add(std::string_view token, int64_t id, std::string_view where) {
  if (id < 0 || id > kLargestId)
    fail("{}: token '{}': id {} is not between 0 and {}", where, token, id, kLargestId);
  if (contains(id))
    fail("{}: token '{}': id {} belongs to '{}' already", where, token, id, this->token(id));
  if (static_cast<size_t>(count_ + 1) * 2 > slots_.size()) grow();

  const uint64_t hash = hash_bytes(token);
  Slot& slot = slots_[slot_of(token, hash)];
  if (slot.id >= 0) fail("{}: token '{}' is there twice: {} and {}", where, token, slot.id, id);
  slot = {static_cast<uint32_t>(hash), static_cast<int32_t>(id)};
  if (id >= size()) places_.resize(static_cast<size_t>(id) + 1);
  places_[static_cast<size_t>(id)] = {text_.size(), static_cast<int64_t>(token.size())};
  text_.append(token);
  ++count_;
}

std::optional<int64_t> Vocabulary::find(std::string_view token) const {
  if (slots_.empty()) return std::nullopt;
  const Slot& slot = slots_[slot_of(token, hash_bytes(token))];
  if (slot.id < 0) return std::nullopt;
  return slot.id;
}

size_t Vocabulary::slot_of(std::string_view token, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].id >= 0) {
    if (slots_[at].hash == static_cast<uint32_t>(hash) && this->token(slots_[at].id) == token)
      break;
    at = (at + 1) & mask;
  }
  return at;
}

void Vocabulary::grow() {
  slots_.assign(slots_.empty() ? 1024 : slots_.size() * 2, Slot{});
  for (int64_t id = 0; id < size(); ++id) {
    if (!contains(id)) continue;
    const uint64_t hash = hash_bytes(token(id));
    slots_[slot_of(token(id), hash)] = {static_cast<uint32_t>(hash), static_cast<int32_t>(id)};
  }
}

}  // namespace dofla
