// How each token of a model reads by itself, as log-probabilities name it.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "dofla/checkpoint/tokenizer.h"

namespace dofla {

class TokenTexts {
 public:
  explicit TokenTexts(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // As in the midst of a text. A token that holds only part of a character reads as the
  // tokenizer's file spells it, so that no two of them are the same. May be called from several
  // threads.
  const std::string& text(int64_t id) const;

 private:
  void fill() const;

  Tokenizer tokenizer_;
  mutable std::once_flag filled_;
  mutable std::vector<std::string> texts_;
};

}  // namespace dofla
