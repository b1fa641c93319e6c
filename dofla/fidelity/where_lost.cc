#include "dofla/fidelity/where_lost.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <unordered_map>

#include "dofla/core/error.h"

namespace dofla {
namespace {

// Tokens are sorted into classes by a whole number: class c has those up to `last`, beginning after
// the class before it.
struct NumberClass {
  int64_t last;
  std::string name;
};
constexpr int64_t kNoLast = std::numeric_limits<int64_t>::max();

// Counts tokens class by class.
class Slices {
 public:
  explicit Slices(std::vector<NumberClass> classes)
      : classes_(std::move(classes)), sums_(classes_.size()) {}

  void add(int64_t number, const TokenStatistics& token) {
    const auto found = std::ranges::lower_bound(classes_, number, {}, &NumberClass::last);
    Slice& sum = sums_[static_cast<size_t>(found - classes_.begin())];
    ++sum.tokens;
    sum.kl += token.kl;
    sum.added += token.student_loss - token.teacher_loss;
  }

  std::vector<Slice> finish() && {
    double whole = 0;
    for (const Slice& sum : sums_) whole += sum.kl;
    std::vector<Slice> result;
    for (size_t i = 0; i < sums_.size(); ++i) {
      Slice& sum = sums_[i];
      if (sum.tokens == 0) continue;
      const auto tokens = static_cast<double>(sum.tokens);
      result.push_back({.name = classes_[i].name,
                        .last = classes_[i].last,
                        .tokens = sum.tokens,
                        .kl = sum.kl / tokens,
                        .added = sum.added / tokens,
                        .share = whole > 0 ? sum.kl / whole : 0});
    }
    return result;
  }

 private:
  std::vector<NumberClass> classes_;
  std::vector<Slice> sums_;
};

// 2 to 4, 5 to 8, 9 to 16, …
std::vector<NumberClass> position_classes(size_t longest) {
  std::vector<NumberClass> classes = {{4, "2 to 4"}};
  while (classes.back().last < static_cast<int64_t>(longest)) {
    const int64_t before = classes.back().last;
    classes.push_back({2 * before, fmt::format("{} to {}", before + 1, 2 * before)});
  }
  return classes;
}

std::vector<NumberClass> frequency_classes() {
  return {{10, "the 10 most frequent"},
          {100, "11th to 100th"},
          {1000, "101st to 1,000th"},
          {10'000, "1,001st to 10,000th"},
          {kNoLast, "rarer"}};
}

// How many tokens ago; kNoLast: never.
std::vector<NumberClass> distance_classes() {
  return {{16, "seen 1 to 16 tokens ago"},
          {64, "17 to 64"},
          {256, "65 to 256"},
          {1024, "257 to 1,024"},
          {kNoLast - 1, "more than 1,024"},
          {kNoLast, "new in its window"}};
}

// 1 for the most frequent token; of equally frequent ones the smaller id comes first.
std::unordered_map<int64_t, int64_t> frequency_ranks(std::span<const TokenIds> ids) {
  std::unordered_map<int64_t, int64_t> counts;
  for (const TokenIds& window : ids)
    for (const int64_t id : window) ++counts[id];
  std::vector<std::pair<int64_t, int64_t>> order;  // −count, id
  order.reserve(counts.size());
  for (const auto& [id, count] : counts) order.emplace_back(-count, id);
  std::ranges::sort(order);
  std::unordered_map<int64_t, int64_t> ranks;
  for (size_t i = 0; i < order.size(); ++i) ranks[order[i].second] = static_cast<int64_t>(i) + 1;
  return ranks;
}

// The likeliest tokens of one row of logits [1, V].
struct TopTokens {
  std::vector<LikelyToken> likeliest;
  double p_next = 0;
};
TopTokens top_tokens(const Tensor& logits, const Tokenizer& tokenizer, int64_t next) {
  const Tensor row = logits.to(Device());
  const float* x = row.data<float>();
  const int64_t count = row.count();
  const double peak = *std::max_element(x, x + count);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(x[i] - peak);
  std::vector<int64_t> order(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) order[static_cast<size_t>(i)] = i;
  const int64_t most = std::min<int64_t>(TokenStatistics::kTop, count);
  std::partial_sort(order.begin(), order.begin() + most, order.end(),
                    [&](int64_t a, int64_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
  TopTokens top;
  for (int64_t i = 0; i < most; ++i) {
    const int64_t id = order[static_cast<size_t>(i)];
    top.likeliest.push_back({tokenizer.decode(std::span(&id, 1)), std::exp(x[id] - peak) / sum});
  }
  top.p_next = std::exp(x[next] - peak) / sum;
  return top;
}

}  // namespace

WhereLost where_lost(std::span<const TokenIds> ids, std::span<const WindowStatistics> windows) {
  require(ids.size() == windows.size(), "where lost: {} windows of ids, {} of statistics",
          ids.size(), windows.size());
  size_t longest = 0;
  for (const TokenIds& window : ids) longest = std::max(longest, window.size());
  const auto ranks = frequency_ranks(ids);
  Slices position(position_classes(longest)), frequency(frequency_classes()),
      distance(distance_classes());
  for (size_t w = 0; w < ids.size(); ++w) {
    require(windows[w].size() + 1 == ids[w].size(), "where lost: window {} has other tokens", w);
    std::unordered_map<int64_t, int64_t> last_seen;
    for (size_t t = 0; t < ids[w].size(); ++t) {
      const int64_t id = ids[w][t];
      const auto place = static_cast<int64_t>(t);
      if (t > 0) {
        const TokenStatistics& token = windows[w][t - 1];
        const auto before = last_seen.find(id);
        position.add(place + 1, token);
        frequency.add(ranks.at(id), token);
        distance.add(before == last_seen.end() ? kNoLast : place - before->second, token);
      }
      last_seen[id] = place;
    }
  }
  return {.by_position = std::move(position).finish(),
          .by_frequency = std::move(frequency).finish(),
          .by_distance = std::move(distance).finish()};
}

std::vector<TokenPlace> worst_tokens(std::span<const WindowStatistics> windows, size_t count) {
  std::vector<TokenPlace> all;
  for (size_t w = 0; w < windows.size(); ++w)
    for (size_t t = 0; t < windows[w].size(); ++t) all.push_back({w, t + 1, windows[w][t].kl});
  std::ranges::stable_sort(all, std::greater<>(), &TokenPlace::kl);
  std::vector<TokenPlace> worst;
  for (const TokenPlace& place : all) {
    if (worst.size() == count || place.kl <= 0) break;
    const bool near = std::ranges::any_of(worst, [&](const TokenPlace& other) {
      const size_t low = std::min(other.position, place.position);
      return other.window == place.window &&
             std::max(other.position, place.position) - low < kApart;
    });
    if (!near) worst.push_back(place);
  }
  return worst;
}

WorstPassage worst_passage(const Transformer& teacher, const Transformer& student,
                           const Tokenizer& tokenizer, const TokenIds& ids,
                           const TokenPlace& place) {
  constexpr size_t kContext = 48;  // tokens that are shown
  require(place.position > 0 && place.position < ids.size(), "worst passage: token {} of {}",
          place.position, ids.size());
  const TokenIds before(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(place.position));
  const int64_t next = ids[place.position], rows = std::ssize(before);
  const auto read = [&](const Transformer& model) {
    const Tensor hidden = model.forward(to_tensor(before)).reshape({rows, model.config().width});
    return top_tokens(model.logits(hidden.slice(rows - 1, rows)), tokenizer, next);
  };
  TopTokens wanted = read(teacher), found = read(student);
  const size_t shown = std::min(kContext, before.size());
  return {.window = static_cast<int64_t>(place.window) + 1,
          .position = static_cast<int64_t>(place.position) + 1,
          .kl = place.kl,
          .context = tokenizer.decode(std::span(before).last(shown)),
          .next = tokenizer.decode(std::span(&next, 1)),
          .teacher_p = wanted.p_next,
          .student_p = found.p_next,
          .teacher = std::move(wanted.likeliest),
          .student = std::move(found.likeliest)};
}

}  // namespace dofla
