// How far a student is from its teacher on a text, as numbers over all its tokens: docs/fidelity.md
// defines them.
#pragma once

#include <span>
#include <vector>

#include "dofla/ops/divergence.h"

namespace dofla {

using WindowStatistics = std::vector<TokenStatistics>;  // of the predicted tokens of a window

// The tokens whose likeliest prediction had a probability in one tenth of [0, 1].
struct ReliabilityBin {
  int64_t tokens = 0;
  double confidence = 0;  // the mean of that probability
  double accuracy = 0;    // the share of these predictions that were right
};

struct Calibration {
  static constexpr size_t kBins = 10;
  std::vector<ReliabilityBin> bins;  // kBins
  double error = 0;                  // the mean distance of confidence and accuracy, by tokens
};

struct Divergence {
  int64_t tokens = 0;   // predicted
  int64_t windows = 0;  // that they stand in
  double loss = 0;      // mean next-token cross-entropy, in nats
  double teacher_loss = 0;
  double added_stderr = 0;  // standard error of loss − teacher_loss; NaN of a single window
  double kl = 0;            // mean KL(teacher ‖ student), in nats
  double kl_stderr = 0;     // by bootstrap over windows; NaN of a single window
  double kl_median = 0, kl_90 = 0, kl_95 = 0, kl_99 = 0, kl_999 = 0, kl_max = 0;
  // Of the probability of the token that comes, student − teacher.
  double p_change = 0;        // mean
  double p_change_rms = 0;    // root of the mean square
  double same_top = 0;        // share of tokens with the same likeliest token
  double top5_overlap = 0;    // mean share of the five likeliest tokens that both have
  double entropy_change = 0;  // mean entropy, student − teacher
  Calibration calibration, teacher_calibration;

  double added() const { return loss - teacher_loss; }
  double perplexity() const;
  double perplexity_ratio() const;  // student's / teacher's
};

// Throws std::invalid_argument without a token.
Divergence divergence_of(std::span<const WindowStatistics> windows);

// The q-quantile, 0 ≤ q ≤ 1: between two numbers linearly. `sorted` ascends and is not empty.
double quantile(std::span<const double> sorted, double q);

// The standard error of Σ sums / Σ counts over windows, by drawing as many windows with replacement
// as there are, always with the same seed. NaN of fewer than two windows.
double bootstrap_stderr(std::span<const double> sums, std::span<const double> counts);

}  // namespace dofla
