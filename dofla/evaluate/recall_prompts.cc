#include "dofla/evaluate/recall_prompts.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "dofla/core/error.h"

namespace dofla {
namespace {

constexpr std::array kColours = {"red",   "blue", "green",  "black",  "white",  "yellow",
                                 "brown", "grey", "golden", "silver", "purple", "pink"};
constexpr std::array kThings = {"lamp",   "door",  "box",   "boat",  "clock", "chair",
                                "bridge", "table", "stone", "house", "horse", "ring"};

// Numbers that ordinary text seldom has: years lie below.
constexpr uint64_t kLeastNumber = 10000 - RecallPrompts::kNumbers;

void append(TokenIds& ids, const TokenIds& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

// Moves `count` values, drawn at random, to the front.
template <class Values>
void draw_to_front(Values& values, size_t count, Random& random) {
  for (size_t i = 0; i < count; ++i)
    std::swap(values[i], values[i + random.below(values.size() - i)]);
}

std::vector<Fact> draw_facts(Random& random) {
  auto colours = kColours;
  auto things = kThings;
  draw_to_front(colours, RecallPrompts::kFacts, random);
  draw_to_front(things, RecallPrompts::kFacts, random);
  std::vector<Fact> facts;
  while (facts.size() < RecallPrompts::kFacts) {
    const std::string number = std::to_string(kLeastNumber + random.below(RecallPrompts::kNumbers));
    const auto same = [&](const Fact& fact) { return fact.number == number; };
    if (std::ranges::any_of(facts, same)) continue;
    const size_t i = facts.size();
    facts.push_back({fmt::format("{} {}", colours[i], things[i]), number});
  }
  return facts;
}

// The tokens of a sentence in the middle of a text. At the beginning of a text tokenizers treat
// spaces in ways of their own.
TokenIds encode_within_text(const Tokenizer& tokenizer, const std::string& sentence) {
  const std::string before = ".", whole = before + " " + sentence;
  const TokenIds head = tokenizer.encode(before, false), ids = tokenizer.encode(whole, false);
  std::string read = tokenizer.decode(ids);
  read.erase(0, read.find_first_not_of(' '));
  if (read != whole)
    fail("the tokenizer cannot write \"{}\", which recall asks about: it becomes \"{}\"", whole,
         read);
  if (ids.size() <= head.size() || !std::equal(head.begin(), head.end(), ids.begin()))
    fail("the tokenizer cannot write \"{}\" after a full stop: it joins them to one token",
         sentence);
  return {ids.begin() + std::ssize(head), ids.end()};
}

// A stretch of the prompt: text with facts at random places.
struct Stretch {
  int64_t text_tokens = 0;
  std::vector<TokenIds> facts = {};

  // Where a fact of so many tokens, which take the place of text, can begin.
  uint64_t places_for(const TokenIds& fact) const {
    return static_cast<uint64_t>(std::max<int64_t>(0, text_tokens - std::ssize(fact) + 1));
  }
  void add(TokenIds fact) {
    text_tokens -= std::ssize(fact);
    facts.push_back(std::move(fact));
  }
  // Takes its text from `text`, which moves on.
  void write(TokenIds::const_iterator& text, Random& random, TokenIds& prompt) const {
    std::vector<int64_t> places;
    for (size_t i = 0; i < facts.size(); ++i)
      places.push_back(static_cast<int64_t>(random.below(static_cast<uint64_t>(text_tokens) + 1)));
    std::ranges::sort(places);
    int64_t written = 0;
    const auto write_text = [&](int64_t end) {
      prompt.insert(prompt.end(), text, text + (end - written));
      text += end - written;
      written = end;
    };
    for (size_t i = 0; i < facts.size(); ++i) {
      write_text(places[i]);
      append(prompt, facts[i]);
    }
    write_text(text_tokens);
  }
};

}  // namespace

std::string question_about(const Fact& fact) {
  return fmt::format("The code of the {} is", fact.name);
}

std::string sentence_of(const Fact& fact) {
  return fmt::format("{} {}.", question_about(fact), fact.number);
}

TokenIds beginning_of_text(const Tokenizer& tokenizer) {
  const TokenIds text = tokenizer.encode(".", false), whole = tokenizer.encode(".", true);
  return {whole.begin(), std::search(whole.begin(), whole.end(), text.begin(), text.end())};
}

RecallPrompts::RecallPrompts(Tokenizer tokenizer, TokenIds text, int64_t questions,
                             int64_t longest_distance, uint64_t seed)
    : tokenizer_(std::move(tokenizer)),
      beginning_(beginning_of_text(tokenizer_)),
      text_(std::move(text)),
      questions_(questions),
      longest_distance_(longest_distance),
      seed_(seed) {
  require(questions > 0, "recall: {} questions", questions);
  require(longest_distance > 0, "recall: a distance of {} tokens", longest_distance);
  const int64_t each = tokens(longest_distance), most = std::ssize(text_) / each;
  if (most == 0)
    fail("the text has {} tokens, and a prompt with a distance of {} takes {}: give a longer text",
         text_.size(), longest_distance, each);
  if (most < questions)
    fail(
        "the text has {} tokens, enough for {} questions with a distance of {}, not for {}: ask "
        "fewer or give a longer text",
        text_.size(), most, longest_distance, questions);
}

RecallPrompts::Asked RecallPrompts::ask(int64_t index, Random& random) const {
  require(index >= 0 && index < questions_, "recall: question {} of {}", index, questions_);
  Asked result = {draw_facts(random), {}, {}};
  const Fact& fact = result.facts[0];
  result.sentence = encode_within_text(tokenizer_, sentence_of(fact));
  result.question = encode_within_text(tokenizer_, question_about(fact));
  if (result.question.size() >= result.sentence.size() ||
      !std::equal(result.question.begin(), result.question.end(), result.sentence.begin()))
    fail("the tokenizer joins the number to what stands before it in \"{}\"", sentence_of(fact));
  return result;
}

RecallQuestion RecallPrompts::question(int64_t index, int64_t distance) const {
  require(distance > 0 && distance <= longest_distance_,
          "recall: a distance of {}, expected 1 to {}", distance, longest_distance_);
  Random random(seed_, static_cast<uint64_t>(index));
  const auto [facts, asked, ending] = ask(index, random);

  Stretch before = {kRest - std::ssize(beginning_) - std::ssize(asked) - std::ssize(ending)};
  Stretch after = {distance};
  for (size_t i = 1; i < facts.size(); ++i) {
    TokenIds fact = encode_within_text(tokenizer_, sentence_of(facts[i]));
    const uint64_t first = before.places_for(fact), all = first + after.places_for(fact);
    if (all == 0 || before.text_tokens < 0)
      fail("{} facts of about {} tokens do not fit into a prompt of {}: take longer distances",
           facts.size(), asked.size(), tokens(distance));
    (random.below(all) < first ? before : after).add(std::move(fact));
  }

  TokenIds prompt = beginning_;
  auto text = text_.begin() + index * tokens(longest_distance_);
  before.write(text, random, prompt);
  append(prompt, asked);
  after.write(text, random, prompt);
  append(prompt, ending);
  return {std::move(prompt), facts};
}

RecallQuestion RecallPrompts::needle(int64_t index, int64_t length, double depth) const {
  require(length > 0 && length <= tokens(longest_distance_),
          "recall: a prompt of {} tokens, expected up to {}", length, tokens(longest_distance_));
  require(depth >= 0 && depth <= 1, "recall: a depth of {}, expected 0 to 1", depth);
  Random random(seed_, static_cast<uint64_t>(index));
  const auto [facts, asked, ending] = ask(index, random);
  const int64_t text_tokens =
      length - std::ssize(beginning_) - std::ssize(asked) - std::ssize(ending);
  if (text_tokens < 0)
    fail("a fact of {} tokens and its question do not fit into a prompt of {}: take longer ones",
         asked.size(), length);
  const auto before = std::lround(depth * static_cast<double>(text_tokens));
  const auto text = text_.begin() + index * tokens(longest_distance_);
  TokenIds prompt = beginning_;
  prompt.insert(prompt.end(), text, text + before);
  append(prompt, asked);
  prompt.insert(prompt.end(), text + before, text + text_tokens);
  append(prompt, ending);
  return {std::move(prompt), {facts[0]}};
}

}  // namespace dofla
