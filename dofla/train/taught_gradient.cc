#include "dofla/train/taught_gradient.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"
#include "dofla/ops/rounding.h"

namespace dofla {
namespace {

constexpr int64_t kLogitBytes = int64_t{64} << 20;  // that exist at once

int64_t rows_at_once(const Transformer& model) {
  return std::max<int64_t>(kLogitBytes / (4 * model.config().vocabulary), 1);
}

// Calls see(begin, rows [begin, …) of the hidden states, their logits on the CPU) for all of them.
template <class See>
void each_logits(const Transformer& model, const Tensor& hidden, const See& see) {
  const int64_t rows = hidden.size(0), most = rows_at_once(model);
  for (int64_t begin = 0; begin < rows; begin += most) {
    const Tensor part = hidden.slice(begin, std::min(begin + most, rows));
    see(begin, part, model.logits(part).to(Device()));
  }
}

// Probabilities that are no numbers where the logits are none.
void top_of_row(std::span<const float> logits, std::span<int32_t> tokens,
                std::span<float> log_probability, float& log_rest) {
  if (!std::ranges::all_of(logits, [](float x) { return std::isfinite(x); })) {
    std::ranges::fill(log_probability, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const auto end = order.begin() + std::ssize(tokens);
  std::partial_sort(order.begin(), end, order.end(), likelier);
  std::copy(order.begin(), end, tokens.begin());
  const double most = logits[static_cast<size_t>(order.front())];
  double top = 0, rest = 0;
  for (auto at = order.begin(); at != order.end(); ++at)
    (at < end ? top : rest) += std::exp(logits[static_cast<size_t>(*at)] - most);
  const double norm = most + std::log(top + rest);
  for (size_t i = 0; i < tokens.size(); ++i)
    log_probability[i] = static_cast<float>(logits[static_cast<size_t>(tokens[i])] - norm);
  log_rest = static_cast<float>(std::log(rest / (top + rest)));
}

// The loss of a row, whose logits become `weight` times its slopes in them. With q the student's
// probabilities, Q those of all tokens that the teacher does not name and r the teacher's rest, the
// slope is q − p for a token that it names and q (1 − r / Q) for another.
double row_loss(const TopTokens& teacher, int64_t row, float weight, std::span<float> logits) {
  const auto top = static_cast<size_t>(teacher.top), first = static_cast<size_t>(row) * top;
  const std::span tokens = std::span(teacher.tokens).subspan(first, top);
  const std::span log_p = std::span(teacher.log_probability).subspan(first, top);
  const double log_r = teacher.log_rest[static_cast<size_t>(row)], r = std::exp(log_r);
  const auto at = [&](int32_t token) -> float& { return logits[static_cast<size_t>(token)]; };
  const float most = *std::ranges::max_element(logits);
  std::vector<double> named;
  for (const int32_t token : tokens) named.push_back(at(token) - most);
  for (float& x : logits) x = std::exp(x - most);
  for (const int32_t token : tokens) at(token) = 0;
  const double rest = std::accumulate(logits.begin(), logits.end(), 0.0);
  double sum = rest;
  for (const double x : named) sum += std::exp(x);
  const double norm = std::log(sum);
  double loss = r > 0 ? r * (log_r - std::log(rest) + norm) : 0;
  const auto of_others = static_cast<float>(rest > 0 ? weight * (1 / sum - r / rest) : 0);
  for (float& x : logits) x *= of_others;
  for (size_t i = 0; i < top; ++i) {
    const double p = std::exp(static_cast<double>(log_p[i])), log_q = named[i] - norm;
    if (p > 0) loss += p * (log_p[i] - log_q);
    at(tokens[i]) = static_cast<float>(weight * (std::exp(log_q) - p));
  }
  return loss;
}

// In the type that the model computes with, where it computes.
Tensor like_hidden(const Tensor& slopes, const Tensor& hidden) {
  if (!hidden.device().is_cuda()) return slopes;
  Tensor rounded(slopes.shape(), hidden.dtype(), hidden.device());
  round_into(slopes.to(hidden.device()), rounded);
  return rounded;
}

Tensor flat(const Tensor& hidden) {
  return hidden.reshape({hidden.size(0) * hidden.size(1), hidden.size(2)});
}

}  // namespace

TopTokens top_tokens(const Transformer& model, const Tensor& ids, int64_t top) {
  require(top > 0 && top <= model.config().vocabulary, "the {} likeliest of {} tokens", top,
          model.config().vocabulary);
  const auto rows = static_cast<size_t>(ids.count()), k = static_cast<size_t>(top);
  TopTokens all = {.top = top,
                   .tokens = std::vector<int32_t>(rows * k),
                   .log_probability = std::vector<float>(rows * k),
                   .log_rest = std::vector<float>(rows)};
  const auto see = [&](int64_t begin, const Tensor&, const Tensor& logits) {
    const auto columns = static_cast<size_t>(logits.size(1));
    const std::span values(logits.data<float>(), static_cast<size_t>(logits.count()));
    parallel_for(logits.size(0), [&](int64_t i) {
      const auto row = static_cast<size_t>(begin + i);
      top_of_row(values.subspan(static_cast<size_t>(i) * columns, columns),
                 std::span(all.tokens).subspan(row * k, k),
                 std::span(all.log_probability).subspan(row * k, k), all.log_rest[row]);
    });
  };
  each_logits(model, flat(model.forward(ids)), see);
  return all;
}

double taught_gradient(const Transformer& model, const TopTokens& teacher, const Tensor& ids,
                       bool recompute, Gradients& gradients, double share) {
  require(teacher.rows() == ids.count(), "taught_gradient: {} rows for {} tokens", teacher.rows(),
          ids.count());
  Tape tape = {.recompute = recompute, .ids = {}, .blocks = {}, .last = {}};
  ForwardOptions forward;
  forward.tape = &tape;
  const Tensor hidden = model.forward(ids, forward);
  const Linear& head = model.weights().head;
  const auto weight = static_cast<float>(share / static_cast<double>(ids.count()));
  std::vector<double> losses(static_cast<size_t>(ids.count()));
  Tensor grad = Tensor::zeros(flat(hidden).shape(), hidden.dtype(), hidden.device());
  const auto see = [&](int64_t begin, const Tensor& part, Tensor logits) {
    const auto columns = static_cast<size_t>(logits.size(1));
    const std::span values(logits.data<float>(), static_cast<size_t>(logits.count()));
    parallel_for(logits.size(0), [&](int64_t i) {
      losses[static_cast<size_t>(begin + i)] = row_loss(
          teacher, begin + i, weight, values.subspan(static_cast<size_t>(i) * columns, columns));
    });
    const Tensor slopes = like_hidden(logits, hidden);
    if (Linear* head_gradient = gradients.head()) add_weight_gradient(part, slopes, *head_gradient);
    Tensor to = grad.slice(begin, begin + part.size(0));
    to.assign(matmul_backward(slopes, head));
  };
  each_logits(model, flat(hidden), see);
  model.backward(tape, grad.reshape(hidden.shape()), gradients);
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
}

}  // namespace dofla
