// Byte-pair encoding of one word: the characters' tokens, then the merge of lowest rank, leftmost
// first, until none applies.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dofla/checkpoint/tokenizer/vocabulary.h"

namespace dofla {

// Pairs of tokens by their text, the first to merge first.
class MergeList {
 public:
  void add(std::string_view left, std::string_view right);
  // "left right"; false if this is not two words with one space between.
  bool add_line(std::string_view line);

  size_t size() const { return entries_.size(); }
  std::pair<std::string_view, std::string_view> operator[](size_t i) const;

 private:
  struct Entry {
    size_t begin;
    size_t left;
    size_t right;
  };
  std::string text_;
  std::vector<Entry> entries_;
};

struct BpeSettings {
  std::optional<std::string> unknown;  // the token for a character without one
  bool fuse_unknown = false;           // one such token for a run of them
  bool byte_fallback = false;          // before that, try the character's bytes as <0xE2>
  bool ignore_merges = false;          // a word that is a token is that token
};

class Bpe {
 public:
  // Memory for encode(), kept from word to word.
  struct Scratch;

  Bpe() = default;
  // Throws Error "where: …" if a merge names a token that is not in the vocabulary.
  Bpe(Vocabulary vocabulary, const MergeList& merges, BpeSettings settings, std::string_view where);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Appends the ids of `word`. A character that has no token, and no unknown token to stand for
  // it, is left out.
  void encode(std::string_view word, Scratch& scratch, std::vector<int64_t>& ids) const;

  // Whether cutting a word before each run of `mark` leaves its tokens as they are: no merge joins
  // text that does not end in the mark with text that starts with it.
  bool may_cut_before(std::string_view mark) const;

 private:
  struct Merge {
    int32_t rank = std::numeric_limits<int32_t>::max();  // the largest: there is no such merge
    int32_t id = -1;
    bool exists() const { return id >= 0; }
  };
  struct Slot {
    uint64_t pair = kNoPair;
    Merge merge;
  };
  struct Node;
  struct Candidate;
  static constexpr uint64_t kNoPair = ~uint64_t{0};

  static uint64_t pair_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t pair) const;  // its slot, or the empty one where it would go
  Merge merge_of(int32_t left, int32_t right) const {
    return slots_[slot_of(pair_of(left, right))].merge;
  }

  int32_t token_of(std::string_view character) const;  // -1: none
  void read_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  Vocabulary vocabulary_;
  BpeSettings settings_;
  int32_t unknown_ = -1;
  std::array<int32_t, 0x800> characters_{};   // tokens of characters below U+0800; -1: none
  std::array<int32_t, 256> byte_fallback_{};  // tokens <0x00> to <0xFF>; -1: none
  std::vector<Slot> slots_;                   // open addressing, a power of two, at most half full
};

struct Bpe::Node {  // of a doubly linked list
  int32_t id;       // -1: merged into the node before
  int32_t previous;
  int32_t next;
};

struct Bpe::Candidate {
  Merge merge;
  int32_t at;
  bool operator<(const Candidate& other) const {  // the top of the heap is the merge to do first
    return merge.rank != other.merge.rank ? merge.rank > other.merge.rank : at > other.at;
  }
};

struct Bpe::Scratch {
  std::vector<int32_t> symbols;
  std::vector<Merge> merges;  // of each two neighbours
  std::vector<Node> nodes;
  std::vector<Candidate> heap;
};

}  // namespace dofla
