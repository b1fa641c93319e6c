#include "dofla/data/tasks/candidate.h"

#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/core/fingerprint.h"
#include "dofla/data/utf8.h"
#include "dofla/distributed/agreement.h"

namespace dofla {
namespace {

int64_t first_token(const ModelConfig& config) {
  if (config.begin_of_text) return *config.begin_of_text;
  if (config.end_of_text) return *config.end_of_text;
  fail("a question without context needs a token to begin with, and the model names none");
}

Candidate encode_candidate(std::string_view context, std::string_view continuation,
                           const Encode& encode, const ModelConfig& config) {
  require(!continuation.empty(), "encode_question: a continuation is empty");
  const std::string whole = fmt::format("{} {}", context, continuation);
  const size_t spaces = context.size() - (context.find_last_not_of(" \t\n\r\v\f") + 1);
  const size_t before = encode(context.substr(0, context.size() - spaces)).size();

  Candidate candidate;
  candidate.characters = count_characters(continuation);
  candidate.ids = encode(whole);
  if (before == 0) candidate.ids.insert(candidate.ids.begin(), first_token(config));
  for (const int64_t id : candidate.ids)
    if (id < 0 || id >= config.vocabulary)
      fail("the tokenizer gives id {}, but the model's vocabulary has {}", id, config.vocabulary);
  const auto tokens = static_cast<int64_t>(candidate.ids.size());
  require(tokens >= 2, "encode_question: the continuation has no token");
  // Where the tokenizer joins the whole continuation with the context's end, that token counts.
  candidate.scored_from = std::clamp(static_cast<int64_t>(before), int64_t{1}, tokens - 1);
  return candidate;
}

bool truncate(Candidate& candidate, int64_t longest) {
  const int64_t surplus = static_cast<int64_t>(candidate.ids.size()) - longest;
  if (surplus <= 0) return false;
  candidate.ids.erase(candidate.ids.begin(), candidate.ids.begin() + surplus);
  candidate.scored_from = std::max(candidate.scored_from - surplus, int64_t{1});
  return true;
}

}  // namespace

EncodedQuestion encode_question(const Question& question, const Encode& encode,
                                const ModelConfig& config) {
  const auto count = static_cast<int64_t>(question.candidates());
  require(question.gold >= 0 && question.gold < count, "encode_question: gold {} of {} candidates",
          question.gold, count);
  EncodedQuestion result;
  result.gold = question.gold;
  for (size_t i = 0; i < question.candidates(); ++i) {
    result.candidates.push_back(
        encode_candidate(question.context(i), question.continuation(i), encode, config));
    result.truncated |= truncate(result.candidates.back(), config.context + 1);
  }
  return result;
}

std::vector<EncodedQuestion> encode_questions(const std::vector<Question>& questions,
                                              const Encode& encode, const ModelConfig& config) {
  std::vector<EncodedQuestion> encoded;
  encoded.reserve(questions.size());
  for (const Question& question : questions)
    encoded.push_back(encode_question(question, encode, config));
  return encoded;
}

std::vector<EncodedQuestion> encode_questions(const std::vector<Question>& questions,
                                              const Tokenizer& tokenizer,
                                              const ModelConfig& config) {
  const Encode encode = [&](std::string_view text) { return tokenizer.encode(text, false); };
  return encode_questions(questions, encode, config);
}

void require_same_questions(const Group& group, const std::vector<EncodedQuestion>& questions) {
  if (group.alone()) return;
  Fingerprint all;
  for (const EncodedQuestion& question : questions) {
    all.add(static_cast<uint64_t>(question.gold));
    for (const Candidate& candidate : question.candidates) {
      all.add(static_cast<uint64_t>(candidate.scored_from));
      all.add(std::as_bytes(std::span(candidate.ids)));
    }
  }
  require_same(group, "questions", all.text());
}

int64_t shared_tokens(const EncodedQuestion& question) {
  const TokenIds& first = question.candidates.front().ids;
  int64_t shared = question.candidates.front().scored_from;
  for (const Candidate& candidate : question.candidates) {
    const auto most = first.begin() + std::min(shared, candidate.scored_from);
    shared = std::mismatch(first.begin(), most, candidate.ids.begin()).first - first.begin();
  }
  return shared;
}

}  // namespace dofla
