// A cache of exact keys in double precision, to compare a GPU's choice with.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "dofla/ops/exact_keys.h"

namespace dofla::test {

struct CacheCase {
  int64_t batch, key_heads, group, tokens, past, width;
  ExactKeys exact;
};

// One key head's cache in double precision. It loses the keys that it is told to.
class ReplayedCache {
 public:
  ReplayedCache(const CacheCase& c, const HeadCache& own, const float* k, const float* score)
      : c_(c),
        limit_(own.limit),
        recent_(c.exact.with_keys(own.limit).newest()),
        k_(k),
        held_(static_cast<size_t>(own.before)),
        score_(static_cast<size_t>(own.before)) {
    std::iota(held_.begin(), held_.end(), 0);
    std::copy_n(score, own.before, score_.begin());
  }

  const std::vector<int32_t>& held() const { return held_; }
  const std::vector<double>& score() const { return score_; }
  bool full() const { return static_cast<int64_t>(held_.size()) == limit_; }

  // How much a key that leaves, to `order`, exceeds one that could have left instead; infinite if
  // one leaves that may not.
  double leave(const int32_t* order) {
    EXPECT_TRUE(std::is_sorted(order, order + c_.exact.block));
    const auto last = static_cast<int64_t>(held_.size()) - recent_;
    double most = -1, least = std::numeric_limits<double>::infinity();
    std::vector<int32_t> held;
    std::vector<double> score;
    for (int64_t i = 0; i < static_cast<int64_t>(held_.size()); ++i) {
      const auto at = static_cast<size_t>(i);
      const bool may_leave = i >= c_.exact.sinks && i < last;
      if (std::find(order, order + c_.exact.block, held_[at]) != order + c_.exact.block) {
        most = std::max(most, may_leave ? score_[at] : std::numeric_limits<double>::infinity());
        continue;
      }
      if (may_leave) least = std::min(least, score_[at]);
      held.push_back(held_[at]);
      score.push_back(score_[at]);
    }
    held_ = held, score_ = score;
    return most - least;
  }

  // The next token comes; q is that of the first query head, `stride` elements before the next.
  void come(const float* q, int64_t stride) {
    held_.push_back(held_.empty() ? 0 : held_.back() + 1);
    score_.push_back(0.5 * static_cast<double>(c_.group) / static_cast<double>(limit_) /
                     (1 - c_.exact.decay));
    for (double& x : score_) x *= c_.exact.decay;
    for (int64_t head = 0; head < c_.group; ++head) {
      std::vector<double> weights;
      double total = 0;
      for (const int32_t key : held_) {
        double product = 0;
        for (int64_t d = 0; d < c_.width; ++d)
          product += double{q[head * stride + d]} * k_[key * c_.width + d];
        weights.push_back(std::exp(product / std::sqrt(static_cast<double>(c_.width))));
        total += weights.back();
      }
      for (size_t i = 0; i < held_.size(); ++i) score_[i] += weights[i] / total;
    }
  }

 private:
  const CacheCase& c_;
  const int64_t limit_, recent_;
  const float* k_;
  std::vector<int32_t> held_;
  std::vector<double> score_;
};

}  // namespace dofla::test
