// Reads tokenizer.json. Vocabulary and merges make up nearly all of it and go straight into their
// tables: as a JSON tree they would take most of the program's start-up.
#pragma once

#include <string_view>

#include "dofla/checkpoint/tokenizer/bpe.h"
#include "dofla/checkpoint/tokenizer/vocabulary.h"
#include "dofla/core/json.h"

namespace dofla {

struct TokenizerFile {
  Json settings;  // everything but model.vocab and model.merges
  Vocabulary vocabulary;
  MergeList merges;
  bool has_vocabulary = false;
  bool has_merges = false;
};

// Throws Error "where: …" on text that is not JSON, nested too deep, or whose vocabulary or merges
// are malformed.
TokenizerFile read_tokenizer_file(std::string_view text, std::string_view where);

}  // namespace dofla
