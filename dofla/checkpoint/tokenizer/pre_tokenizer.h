// Cuts text into words; BPE never merges across their bounds.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dofla/checkpoint/tokenizer/json_view.h"
#include "dofla/checkpoint/tokenizer/pattern.h"
#include "dofla/checkpoint/tokenizer/word_patterns.h"

namespace dofla {

class PreTokenizer {
 public:
  // `pre_tokenizer` of a tokenizer.json: null, ByteLevel, Split, Digits, Metaspace or a Sequence.
  static PreTokenizer parse(const JsonView& json);

  // GPT-2's own: what vocab.json + merges.txt stand for.
  static PreTokenizer gpt2(bool add_prefix_space);

  // Words are to be spelled in the byte-level alphabet before they reach BPE.
  bool byte_level() const { return byte_level_; }

  // Also cuts before each run of space marks. Right only where no merge joins what comes before
  // with a mark: the words are then shorter, and the tokens the same.
  void cut_before_marks() { splitters_.push_back({word_end_before_mark_run, {}, false, false}); }

  // The words of `text`, in order. They point into `text` or `storage`. `at_start`: the text opens
  // the whole input.
  void split(std::string_view text, bool at_start, std::string& storage,
             std::vector<std::string_view>& words) const;

 private:
  struct Splitter {
    WordEnd word_end = nullptr;      // if there is one,
    std::optional<Pattern> pattern;  // else this
    bool drop_matches = false;
    bool drop_gaps = false;
  };
  enum class Prefix { kNever, kFirst, kAlways };

  void parse_step(const JsonView& json);
  void parse_byte_level(const JsonView& json);
  void parse_metaspace(const JsonView& json);
  void parse_split(const JsonView& json);
  static void cut(const Splitter& splitter, std::string_view text,
                  std::vector<std::string_view>& words);

  std::string space_ = " ";          // how a space is written: kSpaceMark under Metaspace
  Prefix prefix_ = Prefix::kNever;   // text that does not start with a space is given one
  std::vector<Splitter> splitters_;  // each cuts the words of the one before
  bool byte_level_ = false;
};

}  // namespace dofla
