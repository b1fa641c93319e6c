// Prompts that ask for a number which stood in them a known number of tokens before: facts in the
// middle of ordinary text. docs/recall.md says what for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/core/random.h"
#include "dofla/data/batches.h"

namespace dofla {

// "The code of the red lamp is 4817."
struct Fact {
  std::string name;    // "red lamp"
  std::string number;  // "4817"
};

std::string question_about(const Fact& fact);  // "The code of the red lamp is"
std::string sentence_of(const Fact& fact);     // the same with the number and a full stop

struct RecallQuestion {
  TokenIds prompt;
  std::vector<Fact> facts;  // that stand in the prompt; the first is asked for
};

// What a tokenizer puts before a text, such as <s>.
TokenIds beginning_of_text(const Tokenizer& tokenizer);

class RecallPrompts {
 public:
  static constexpr size_t kFacts = 5;        // of a prompt, with names and numbers of their own
  static constexpr int64_t kNumbers = 7900;  // that a fact may have: 2100 to 9999
  // Tokens of a prompt besides the distance: text, the fact that is asked for, and the question.
  static constexpr int64_t kRest = 128;
  static int64_t tokens(int64_t distance) { return distance + kRest; }  // of a prompt

  // `text` is ordinary text, without special tokens, that no prompt shares with another of the same
  // distance. Throws Error if it is too short for so many questions at the longest distance.
  RecallPrompts(Tokenizer tokenizer, TokenIds text, int64_t questions, int64_t longest_distance,
                uint64_t seed);

  // Between the end of the fact and the question stand exactly `distance` tokens. Facts and text
  // depend on seed and index alone, their places also on the distance. Throws Error if the
  // tokenizer cannot write the facts, or needs so many tokens for them that they do not fit.
  RecallQuestion question(int64_t index, int64_t distance) const;

  // A prompt of `length` tokens, at most those of the longest distance, with a single fact:
  // `depth`, 0 to 1, is the share of its text that stands before the fact. The fact and the text
  // are those of question(index).
  RecallQuestion needle(int64_t index, int64_t length, double depth) const;

  int64_t questions() const { return questions_; }
  int64_t longest_distance() const { return longest_distance_; }
  uint64_t seed() const { return seed_; }

 private:
  struct Asked {
    std::vector<Fact> facts;  // the first is asked for
    TokenIds sentence;        // that states it
    TokenIds question;
  };
  Asked ask(int64_t index, Random& random) const;

  Tokenizer tokenizer_;
  TokenIds beginning_;
  TokenIds text_;
  int64_t questions_;
  int64_t longest_distance_;
  uint64_t seed_;
};

}  // namespace dofla
