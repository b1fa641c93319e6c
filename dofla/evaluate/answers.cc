#include "dofla/evaluate/answers.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/error.h"
#include "dofla/evaluate/tasks.h"
#include "dofla/generate/generate.h"

namespace dofla {
namespace {

// A line end, a space, the letter, and one that shows that the word has ended.
constexpr int64_t kLetterTokens = 4;

// The letters of all questions in one row, question after question, rotation after rotation.
struct Answered {
  Letters letters = {};
  int64_t truncated = 0;
};

// Of candidates that are letters, the likeliest; of equal ones the first.
Answered likeliest_letters(const Transformer& model, const std::vector<Question>& asked,
                           const Encode& encode, const Progress& progress, const Group& group) {
  const std::vector<EncodedQuestion> questions = encode_questions(asked, encode, model.config());
  Answered result;
  for (const EncodedQuestion& question : questions) result.truncated += question.truncated;
  for (const std::vector<double>& scores : score_questions(model, questions, progress, group)) {
    const auto best = std::ranges::max_element(scores);
    const bool finite = std::ranges::all_of(scores, [](double x) { return std::isfinite(x); });
    result.letters.push_back(finite ? std::optional(static_cast<size_t>(best - scores.begin()))
                                    : std::nullopt);
  }
  return result;
}

Answered written_letters(const Transformer& model, const Tokenizer& tokenizer,
                         const std::vector<Question>& asked, const Encode& encode,
                         const Progress& progress, const Group& group) {
  // The last token of an answer need not be read.
  const int64_t most = model.config().context + 1 - kLetterTokens;
  if (most < 1)
    fail("the model's context of {} tokens is too short to write an answer: that takes {}",
         model.config().context, kLetterTokens);
  Answered result;
  std::vector<TokenIds> prompts;
  for (const Question& question : asked) {
    TokenIds& prompt = prompts.emplace_back(encode(question.contexts[0]));
    const int64_t surplus = std::ssize(prompt) - most;
    if (surplus <= 0) continue;
    prompt.erase(prompt.begin(), prompt.begin() + surplus);
    ++result.truncated;
  }
  const std::vector<TokenIds> drawn =
      generate_greedily(model, prompts, kLetterTokens, progress, group);
  for (size_t i = 0; i < asked.size(); ++i)
    result.letters.push_back(letter_in(tokenizer.decode(drawn[i]), asked[i].candidates()));
  return result;
}

double share(double part, size_t all) {
  return part / static_cast<double>(all);
}

}  // namespace

std::optional<size_t> letter_in(std::string_view answer, size_t options) {
  // Bytes of characters beyond ASCII belong to words.
  const auto in_word = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           static_cast<unsigned char>(c) >= 0x80;
  };
  const auto begin = std::ranges::find_if(answer, in_word);
  const auto end = std::find_if_not(begin, answer.end(), in_word);
  if (end - begin != 1 || *begin < 'A') return std::nullopt;
  const auto letter = static_cast<size_t>(*begin - 'A');
  return letter < options ? std::optional(letter) : std::nullopt;
}

LetteredResult count_letters(const std::vector<Question>& questions,
                             const std::vector<Letters>& letters) {
  require(!questions.empty() && questions.size() == letters.size(),
          "letters: {} answers to {} questions", letters.size(), questions.size());
  LetteredResult result = {.questions = std::ssize(questions)};
  std::vector<double> right, right_as_published;
  for (size_t q = 0; q < questions.size(); ++q) {
    const size_t count = questions[q].options.size();
    require(count > 0 && letters[q].size() == count, "letters: {} rotations of {} options",
            letters[q].size(), count);
    const auto option = [&](size_t turn) -> std::optional<size_t> {
      return letters[q][turn] ? std::optional((*letters[q][turn] + turn) % count) : std::nullopt;
    };
    const auto is_right = [&](size_t turn) {
      return option(turn) == static_cast<size_t>(questions[q].gold);
    };
    double rights = 0;
    bool same = option(0).has_value();
    for (size_t turn = 0; turn < count; ++turn) {
      rights += is_right(turn) ? 1 : 0;
      same = same && option(turn) == option(0);
      result.unanswered += letters[q][turn] ? 0 : 1;
    }
    result.asked += static_cast<int64_t>(count);
    result.chance += share(share(1, count), questions.size());
    result.same_option += share(same ? 1 : 0, questions.size());
    right.push_back(share(rights, count));
    right_as_published.push_back(is_right(0) ? 1 : 0);
  }
  result.acc = accuracy(right);
  result.as_published = accuracy(right_as_published);
  return result;
}

LetteredResult evaluate_letters(const Transformer& model, const Tokenizer& tokenizer,
                                const std::vector<Question>& questions, AnswerBy by,
                                const Progress& progress, const Group& group) {
  std::vector<Question> asked;
  for (const Question& question : questions)
    for (size_t turn = 0; turn < std::max<size_t>(question.options.size(), 1); ++turn)
      asked.push_back(lettered(question, turn));
  require(!asked.empty(), "evaluate_letters: no question given");
  const Encode encode = [&](std::string_view text) { return tokenizer.encode(text, false); };
  const Answered answered = by == AnswerBy::kLikelihood
                                ? likeliest_letters(model, asked, encode, progress, group)
                                : written_letters(model, tokenizer, asked, encode, progress, group);
  std::vector<Letters> letters;
  auto next = answered.letters.begin();
  for (const Question& question : questions) {
    letters.emplace_back(next, next + std::ssize(question.options));
    next += std::ssize(question.options);
  }
  LetteredResult result = count_letters(questions, letters);
  result.truncated = answered.truncated;
  return result;
}

}  // namespace dofla
