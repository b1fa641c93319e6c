// The tokens of a model and their ids, both ways.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dofla {

class Vocabulary {
 public:
  // Far above any real vocabulary; keeps a hostile id from asking for gigabytes.
  static constexpr int64_t kLargestId = (int64_t{1} << 22) - 1;

  // Throws Error "where: …" if the id is out of range, or the token or the id is there already.
  void add(std::string_view token, int64_t id, std::string_view where);

  std::optional<int64_t> find(std::string_view token) const;

  bool contains(int64_t id) const {
    return id >= 0 && id < size() && places_[static_cast<size_t>(id)].length >= 0;
  }
  std::string_view token(int64_t id) const {  // contains(id); lives until the next add()
    const Place& place = places_[static_cast<size_t>(id)];
    return {text_.data() + place.begin, static_cast<size_t>(place.length)};
  }

  int64_t size() const { return static_cast<int64_t>(places_.size()); }  // largest id + 1
  int64_t count() const { return count_; }                               // tokens

 private:
  struct Place {
    size_t begin = 0;
    int64_t length = -1;  // -1: no token has this id
  };
  struct Slot {
    uint32_t hash = 0;
    int32_t id = -1;  // -1: empty
  };

  size_t slot_of(std::string_view token, uint64_t hash) const;  // its slot, or where it would go
  void grow();

  std::string text_;           // all tokens, end to end
  std::vector<Place> places_;  // by id
  std::vector<Slot> slots_;    // open addressing, a power of two, at most half full
  int64_t count_ = 0;
};

}  // namespace dofla
