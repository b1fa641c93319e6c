#include "dofla/checkpoint/tokenizer/bpe.h"

#include <algorithm>
#include <bit>

#include "dofla/checkpoint/tokenizer/unicode.h"
#include "dofla/core/error.h"

namespace dofla {
namespace {

// Up to here looking at every pair again after each merge is faster than keeping a heap.
constexpr size_t kLongestShortWord = 48;

}  // namespace

void MergeList::add(std::string_view left, std::string_view right) {
  entries_.push_back({text_.size(), left.size(), right.size()});
  text_.append(left).append(right);
}

bool MergeList::add_line(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == line.npos || line.find(' ', space + 1) != line.npos) return false;
  add(line.substr(0, space), line.substr(space + 1));
  return true;
}

std::pair<std::string_view, std::string_view> MergeList::operator[](size_t i) const {
  const Entry& entry = entries_[i];
  const std::string_view both(text_.data() + entry.begin, entry.left + entry.right);
  return {both.substr(0, entry.left), both.substr(entry.left)};
}

Bpe::Bpe(Vocabulary vocabulary, const MergeList& merges, BpeSettings settings,
         std::string_view where)
    : vocabulary_(std::move(vocabulary)), settings_(std::move(settings)) {
  const auto id_of = [&](std::string_view token) {
    const std::optional<int64_t> id = vocabulary_.find(token);
    return id ? static_cast<int32_t>(*id) : -1;
  };
  for (size_t code = 0; code < characters_.size(); ++code) {
    const char bytes[2] = {static_cast<char>(code < 0x80 ? code : 0xC0 | code >> 6),
                           static_cast<char>(0x80 | (code & 0x3F))};
    characters_[code] = id_of({bytes, code < 0x80 ? size_t{1} : size_t{2}});
  }
  for (size_t byte = 0; byte < byte_fallback_.size(); ++byte)
    byte_fallback_[byte] = id_of(fmt::format("<0x{:02X}>", byte));
  if (settings_.unknown) {
    unknown_ = id_of(*settings_.unknown);
    if (unknown_ < 0)
      fail("{}: unk_token '{}' is not in the vocabulary", where, *settings_.unknown);
  }

  slots_.resize(std::bit_ceil(std::max<size_t>(merges.size() * 2, 2)));
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto [left, right] = merges[rank];
    joined.assign(left).append(right);
    for (const std::string_view token : {left, right, std::string_view(joined)})
      if (id_of(token) < 0)
        fail("{}: merge {} ('{}' '{}'): token '{}' is not in the vocabulary", where, rank, left,
             right, token);
    const uint64_t pair = pair_of(id_of(left), id_of(right));
    const Merge merge = {static_cast<int32_t>(rank), id_of(joined)};
    slots_[slot_of(pair)] = {pair, merge};  // a pair given twice: the last one counts
  }
}

size_t Bpe::slot_of(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  size_t at = (pair * 0x9e3779b97f4a7c15u >> 32) & mask;
  while (slots_[at].pair != pair && slots_[at].pair != kNoPair) at = (at + 1) & mask;
  return at;
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int64_t>& ids) const {
  if (settings_.ignore_merges) {
    if (const std::optional<int64_t> id = vocabulary_.find(word)) {
      ids.push_back(*id);
      return;
    }
  }
  read_symbols(word, scratch.symbols);
  if (scratch.symbols.size() > kLongestShortWord) {
    merge_long(scratch);
  } else {
    merge_short(scratch);
  }
  ids.insert(ids.end(), scratch.symbols.begin(), scratch.symbols.end());
}

int32_t Bpe::token_of(std::string_view character) const {
  if (character.size() <= 2) return characters_[character_at(character, 0).code];
  const std::optional<int64_t> id = vocabulary_.find(character);
  return id ? static_cast<int32_t>(*id) : -1;
}

void Bpe::read_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  symbols.clear();
  bool unknown_pending = false;  // an unknown token is written once its run is known to be over
  const auto end_unknown = [&] {
    if (unknown_pending) symbols.push_back(unknown_);
    unknown_pending = false;
  };
  for (size_t at = 0; at < word.size();) {
    const std::string_view character = word.substr(at, character_at(word, at).length);
    at += character.size();
    if (const int32_t id = token_of(character); id >= 0) {
      end_unknown();
      symbols.push_back(id);
      continue;
    }
    const auto byte_token = [&](char byte) { return byte_fallback_[static_cast<uint8_t>(byte)]; };
    if (settings_.byte_fallback && std::all_of(character.begin(), character.end(),
                                               [&](char byte) { return byte_token(byte) >= 0; })) {
      for (const char byte : character) symbols.push_back(byte_token(byte));
    } else if (unknown_ >= 0) {
      if (!settings_.fuse_unknown) end_unknown();
      unknown_pending = true;
    }
  }
  end_unknown();
}

void Bpe::merge_short(Scratch& scratch) const {
  std::vector<int32_t>& symbols = scratch.symbols;
  std::vector<Merge>& merges = scratch.merges;
  if (symbols.size() < 2) return;
  merges.clear();
  for (size_t i = 0; i + 1 < symbols.size(); ++i)
    merges.push_back(merge_of(symbols[i], symbols[i + 1]));
  while (!merges.empty()) {
    const auto best =
        std::min_element(merges.begin(), merges.end(),
                         [](const Merge& a, const Merge& b) { return a.rank < b.rank; });
    if (!best->exists()) break;
    const auto at = static_cast<size_t>(best - merges.begin());
    symbols[at] = best->id;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
    merges.erase(best);
    if (at > 0) merges[at - 1] = merge_of(symbols[at - 1], symbols[at]);
    if (at < merges.size()) merges[at] = merge_of(symbols[at], symbols[at + 1]);
  }
}

void Bpe::merge_long(Scratch& scratch) const {
  std::vector<Node>& nodes = scratch.nodes;
  std::vector<Candidate>& heap = scratch.heap;
  const auto count = static_cast<int32_t>(scratch.symbols.size());
  const auto node = [&](int32_t at) -> Node& { return nodes[static_cast<size_t>(at)]; };
  const auto merge_at = [&](int32_t at) {  // of a node and its next
    const int32_t next = node(at).next;
    return next < 0 ? Merge{} : merge_of(node(at).id, node(next).id);
  };
  nodes.clear();
  for (int32_t i = 0; i < count; ++i)
    nodes.push_back({scratch.symbols[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  heap.clear();
  for (int32_t i = 0; i < count; ++i)
    if (const Merge merge = merge_at(i); merge.exists()) heap.push_back({merge, i});
  std::make_heap(heap.begin(), heap.end());

  const auto offer = [&](int32_t at) {
    const Merge merge = merge_at(at);
    if (!merge.exists()) return;
    heap.push_back({merge, at});
    std::push_heap(heap.begin(), heap.end());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate top = heap.back();
    heap.pop_back();
    // Either side may have been merged away since this candidate was entered.
    if (node(top.at).id < 0 || merge_at(top.at).id != top.merge.id) continue;
    Node& left = node(top.at);
    Node& right = node(left.next);
    left.id = top.merge.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) node(left.next).previous = top.at;
    if (left.previous >= 0) offer(left.previous);
    offer(top.at);
  }
  scratch.symbols.clear();
  for (const Node& n : nodes)
    if (n.id >= 0) scratch.symbols.push_back(n.id);
}

bool Bpe::may_cut_before(std::string_view mark) const {
  if (settings_.ignore_merges || !vocabulary_.find(mark)) return false;
  return std::none_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    if (slot.pair == kNoPair) return false;
    const std::string_view left = vocabulary_.token(static_cast<int64_t>(slot.pair >> 32));
    const std::string_view right = vocabulary_.token(static_cast<int64_t>(slot.pair & 0xFFFFFFFF));
    return !left.ends_with(mark) && right.starts_with(mark);
  });
}

}  // namespace dofla
