#include "tests/reference/hybrid_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/reference/linear_attention.h"

namespace dofla::reference {
namespace {

struct Choice {
  HeldKeys held;
  double closest = std::numeric_limits<double>::infinity();
};

Choice choose(const AttentionCase& c, const ExactKeys& exact) {
  const int64_t T = c.tokens, group = c.heads / c.key_heads;
  Choice choice;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t g = 0; g < c.key_heads; ++g) {
      std::vector<std::vector<double>> kernel;
      for (int64_t h = g * group; h < (g + 1) * group; ++h) kernel.push_back(log_kernel(c, b, h));
      std::vector<int64_t> cache;
      std::vector<double> score(static_cast<size_t>(T), 0);
      for (int64_t t = 0; t < T; ++t) {
        if (static_cast<int64_t>(cache.size()) == exact.keys) {
          std::vector<int64_t> leave;
          for (size_t i = static_cast<size_t>(exact.sinks);
               i < cache.size() - static_cast<size_t>(exact.newest()); ++i)
            leave.push_back(cache[i]);
          std::ranges::stable_sort(leave, [&](int64_t x, int64_t y) {
            return score[static_cast<size_t>(x)] < score[static_cast<size_t>(y)];
          });
          const auto count = static_cast<size_t>(exact.block);
          if (leave.size() > count) {
            const double last = score[static_cast<size_t>(leave[count - 1])];
            const double next = score[static_cast<size_t>(leave[count])];
            if (next > 0) choice.closest = std::min(choice.closest, (next - last) / next);
          }
          leave.resize(count);
          std::erase_if(cache, [&](int64_t j) { return std::ranges::count(leave, j) > 0; });
        }
        cache.push_back(t);
        if (exact.policy == KeyPolicy::kAttended)  // as if always attended half the average
          score[static_cast<size_t>(t)] = 0.5 * static_cast<double>(group) /
                                          static_cast<double>(exact.keys) / (1 - exact.decay);
        for (double& s : score) s *= exact.decay;
        for (const std::vector<double>& logits : kernel) {
          std::vector<double> row;
          for (const int64_t j : cache) row.push_back(logits[static_cast<size_t>(t * T + j)]);
          const double sum = log_sum_exp(row.data(), static_cast<int64_t>(row.size()));
          for (size_t i = 0; i < row.size(); ++i)
            if (exact.policy == KeyPolicy::kAttended)
              score[static_cast<size_t>(cache[i])] += std::exp(row[i] - sum);
        }
        for (int64_t j = 0; j < T; ++j)
          choice.held.push_back(std::ranges::count(cache, j) > 0 ? 1 : 0);
      }
    }
  }
  return choice;
}

}  // namespace

HeldKeys held_keys(const AttentionCase& problem, const ExactKeys& exact) {
  return choose(problem, exact).held;
}

double closest_choice(const AttentionCase& problem, const ExactKeys& exact) {
  return choose(problem, exact).closest;
}

std::vector<double> hybrid_attention(const AttentionCase& c, const HeldKeys& held, bool features) {
  const int64_t T = c.tokens, group = c.heads / c.key_heads;
  std::vector<double> out(static_cast<size_t>(c.batch * T * c.heads * c.width), 0);
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t key_head = b * c.key_heads + h / group;
      const std::vector<double> exact = log_kernel(c, b, h);
      const std::vector<double> estimate =
          features ? log_kernel_hat(c, b, h) : std::vector<double>();
      for (int64_t i = 0; i < T; ++i) {
        std::vector<double> logits;
        for (int64_t j = 0; j <= i; ++j) {
          const auto at = static_cast<size_t>(i * T + j);
          if (held[static_cast<size_t>((key_head * T + i) * T + j)] != 0)
            logits.push_back(exact[at]);
          else
            logits.push_back(features ? estimate[at] : -std::numeric_limits<double>::infinity());
        }
        const double sum = log_sum_exp(logits.data(), i + 1);
        double* to = out.data() + ((b * T + i) * c.heads + h) * c.width;
        for (int64_t j = 0; j <= i; ++j)
          for (int64_t x = 0; x < c.width; ++x)
            to[x] += std::exp(logits[static_cast<size_t>(j)] - sum) *
                     c.v[static_cast<size_t>((key_head * T + j) * c.width + x)];
      }
    }
  }
  return out;
}

}  // namespace dofla::reference
