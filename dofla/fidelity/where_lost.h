// Where a student loses its teacher: by the place of a token in its window, by how frequent it is,
// by how long ago it stood there before, and the tokens where the two are furthest apart.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/data/batches.h"
#include "dofla/fidelity/divergence.h"
#include "dofla/model/transformer.h"

namespace dofla {

// Some of the tokens of a text.
struct Slice {
  std::string name;    // "33 to 64"
  int64_t last = 0;    // the largest number of its kind: 64
  int64_t tokens = 0;  // slices without any are left out
  double kl = 0;       // mean
  double added = 0;    // mean loss above the teacher's
  double share = 0;    // of the divergence of the whole text
};

struct WhereLost {
  std::vector<Slice> by_position;   // of the token in its window, counted from 1
  std::vector<Slice> by_frequency;  // by rank among the tokens of the text, the most frequent first
  std::vector<Slice> by_distance;   // to the same token earlier in the window, and "new"
};

// Both of the same windows, in the same order.
WhereLost where_lost(std::span<const TokenIds> ids, std::span<const WindowStatistics> windows);

// A token, by its window and its place there, both counted from 0.
struct TokenPlace {
  size_t window = 0;
  size_t position = 0;
  double kl = 0;
};

// The `count` tokens with the largest divergence, worst first; none within kApart tokens of a worse
// one of the same window, so that every passage is another one.
constexpr size_t kApart = 24;
std::vector<TokenPlace> worst_tokens(std::span<const WindowStatistics> windows, size_t count);

struct LikelyToken {
  std::string text;
  double p = 0;
};

struct WorstPassage {
  std::string text = {};  // the name of the text
  int64_t window = 0;     // counted from 1
  int64_t position = 0;   // of the token in its window, counted from 1
  double kl = 0;
  std::string context;                        // what stands before it
  std::string next;                           // the token that came
  double teacher_p = 0, student_p = 0;        // its probability
  std::vector<LikelyToken> teacher, student;  // the likeliest tokens
};

// Reads the window again up to that token.
WorstPassage worst_passage(const Transformer& teacher, const Transformer& student,
                           const Tokenizer& tokenizer, const TokenIds& ids,
                           const TokenPlace& place);

}  // namespace dofla
