#include "dofla/checkpoint/tokenizer/added_tokens.h"

#include <algorithm>

#include "dofla/checkpoint/tokenizer/unicode.h"

namespace dofla {
namespace {

bool touches_word_before(std::string_view text, size_t at) {
  return at > 0 && is_word_character(character_at(text, character_before(text, at)).code);
}

bool touches_word_after(std::string_view text, size_t at) {
  return at < text.size() && is_word_character(character_at(text, at).code);
}

size_t spaces_begin(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t before = character_before(text, end);
    if (classify(character_at(text, before).code) != CharClass::kSpace) break;
    end = before;
  }
  return end;
}

size_t spaces_end(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Character character = character_at(text, at);
    if (classify(character.code) != CharClass::kSpace) break;
    at += character.length;
  }
  return at;
}

}  // namespace

std::vector<AddedToken> parse_added_tokens(const JsonView& json) {
  std::vector<AddedToken> tokens;
  for (const JsonView& entry : json.elements()) {
    AddedToken token;
    token.content = entry.text("content");
    token.id = entry.integer("id");
    token.single_word = entry.flag("single_word", false);
    token.lstrip = entry.flag("lstrip", false);
    token.rstrip = entry.flag("rstrip", false);
    token.special = entry.flag("special", false);
    token.normalized = entry.flag("normalized", !token.special);
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  // Where two normal forms coincide, a special token goes before the others.
  std::stable_partition(tokens.begin(), tokens.end(),
                        [](const AddedToken& token) { return token.special; });
  return tokens;
}

void TokenFinder::add(std::string_view pattern, const AddedToken& token) {
  if (pattern.empty()) return;
  const auto new_node = [this] {
    nodes_.emplace_back();
    return static_cast<int32_t>(nodes_.size() - 1);
  };
  int32_t& root = roots_[static_cast<uint8_t>(pattern[0])];
  if (root < 0) root = new_node();
  int32_t node = root;
  for (const char byte : pattern.substr(1)) {
    int32_t next = step(node, byte);
    if (next < 0) {
      next = new_node();
      nodes_[static_cast<size_t>(node)].children.emplace_back(byte, next);
    }
    node = next;
  }
  int32_t& end = nodes_[static_cast<size_t>(node)].token;
  if (end >= 0) return;
  end = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

int32_t TokenFinder::step(int32_t node, char byte) const {
  for (const auto& [edge, child] : nodes_[static_cast<size_t>(node)].children)
    if (edge == byte) return child;
  return -1;
}

std::pair<int32_t, size_t> TokenFinder::longest_at(std::string_view text, size_t at,
                                                   TokensFound found) const {
  std::pair<int32_t, size_t> best = {-1, 0};
  int32_t node = roots_[static_cast<uint8_t>(text[at])];
  for (size_t end = at + 1; node >= 0; ++end) {
    const int32_t token = nodes_[static_cast<size_t>(node)].token;
    const bool counts =
        token >= 0 && (found == TokensFound::kAll || spaces_end(text.substr(0, end), at) == end);
    if (counts) best = {token, end - at};
    node = end < text.size() ? step(node, text[end]) : -1;
  }
  return best;
}

void TokenFinder::split(std::string_view text, std::vector<Segment>& segments,
                        TokensFound found) const {
  segments.clear();
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    if (roots_[static_cast<uint8_t>(text[at])] < 0) {
      ++at;
      continue;
    }
    const auto [index, length] = longest_at(text, at, found);
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = at;
    size_t end = at + length;
    at = end;  // the search goes on behind the token itself, whatever it strips
    if (token.single_word && (touches_word_before(text, begin) || touches_word_after(text, end)))
      continue;
    if (token.lstrip) begin = std::max(spaces_begin(text, begin), done);
    if (token.rstrip) end = spaces_end(text, end);
    if (done < begin) segments.push_back({text.substr(done, begin - done), -1});
    segments.push_back({{}, token.id});
    done = end;
  }
  if (done < text.size()) segments.push_back({text.substr(done), -1});
}

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens, const Vocabulary& model,
                         const Normalizer& normalizer, std::string_view where) {
  std::string storage;
  for (const AddedToken& token : tokens) {
    const std::optional<int64_t> known = model.find(token.content);
    if (known && *known != token.id)
      fail("{}: token '{}' has id {}, but {} in the model", where, token.content, token.id, *known);
    if (!known && model.contains(token.id))
      fail("{}: token '{}': id {} belongs to '{}' in the model", where, token.content, token.id,
           model.token(token.id));
    vocabulary_.add(token.content, token.id, where);
    if (token.special) special_.insert(token.id);
    if (token.normalized) {
      normalized_.add(normalizer.apply(token.content, storage), token);
    } else {
      raw_.add(token.content, token);
    }
  }
}

}  // namespace dofla
