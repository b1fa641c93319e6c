#include "dofla/dof/pivoted_cholesky.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include <cblas.h>
#include <lapacke.h>

#include "dofla/core/error.h"

namespace dofla {
namespace {

constexpr int64_t kBlock = 64;  // pivots tried together, so that the work is matrix products

// Whether the residual falls too slowly to reach what is wanted. It compares with the time when
// the rank was half of what it is now.
class Decay {
 public:
  void add(int64_t rank, double residual) { history_.emplace_back(rank, residual); }

  bool hopeless(double residual_wanted, int64_t largest_rank) const {
    const int64_t rank = history_.back().first;
    const double residual = history_.back().second;
    if (rank < 2 * kBlock) return false;
    const auto half = std::find_if(history_.begin(), history_.end(),
                                   [&](const auto& point) { return 2 * point.first >= rank; });
    const double a_column =
        std::log(half->second / residual) / static_cast<double>(rank - half->first);
    const double needed = std::log(residual / residual_wanted) / a_column;
    // The decay of real heads speeds up towards the end: allow the estimate half as much again.
    return !(static_cast<double>(rank) + needed < 1.5 * static_cast<double>(largest_rank));
  }

 private:
  std::vector<std::pair<int64_t, double>> history_;
};

std::vector<int64_t> largest_entries(const std::vector<double>& x, int64_t count) {
  std::vector<int64_t> order(x.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int64_t a, int64_t b) {
    const double left = x[static_cast<size_t>(a)], right = x[static_cast<size_t>(b)];
    return left != right ? left > right : a < b;
  });
  order.resize(static_cast<size_t>(count));
  return order;
}

// The candidates' columns of what is left over: those of Σ, less F Fᵀ.
std::vector<double> residual_columns(const PsdMatrix& matrix, const LowRankFactor& factor,
                                     const std::vector<int64_t>& candidates) {
  const auto n = static_cast<int>(matrix.size), rank = static_cast<int>(factor.rank);
  const auto count = static_cast<int>(candidates.size());
  std::vector<double> panel(static_cast<size_t>(n) * candidates.size());
  matrix.columns(candidates, 0, panel.data(), n);
  if (rank == 0) return panel;
  std::vector<double> rows(candidates.size() * static_cast<size_t>(rank));  // [count, rank]
  for (int c = 0; c < count; ++c)
    cblas_dcopy(rank, factor.columns.data() + candidates[static_cast<size_t>(c)], n,
                rows.data() + c, count);
  cblas_dgemm(CblasColMajor, CblasNoTrans, CblasTrans, n, count, rank, -1.0, factor.columns.data(),
              n, rows.data(), count, 1.0, panel.data(), n);
  return panel;
}

// Takes as pivots those candidates that are still large once the others are accounted for, and
// appends their columns to the factor. Returns how many it took.
int64_t append_pivots(const std::vector<int64_t>& candidates, const std::vector<double>& panel,
                      double rounding, std::vector<double>& left, LowRankFactor& factor) {
  const auto n = static_cast<int>(left.size());
  const auto count = static_cast<int>(candidates.size());
  std::vector<double> corner(candidates.size() * candidates.size());
  for (int c = 0; c < count; ++c)
    for (int r = 0; r < count; ++r)
      corner[static_cast<size_t>(c * count + r)] =
          panel[static_cast<size_t>(c) * static_cast<size_t>(n) +
                static_cast<size_t>(candidates[static_cast<size_t>(r)])];

  // Below a quarter of what the other rows still hold, a fresh set of candidates does better.
  const double worth_taking =
      std::max(rounding, 0.25 * left[static_cast<size_t>(candidates.back())]);
  std::vector<lapack_int> order(candidates.size());
  lapack_int taken = 0;
  LAPACKE_dpstrf(LAPACK_COL_MAJOR, 'L', count, corner.data(), count, order.data(), &taken,
                 worth_taking);
  if (taken == 0) return 0;

  const size_t begin = factor.columns.size();
  factor.columns.resize(begin + static_cast<size_t>(taken) * left.size());
  double* fresh = factor.columns.data() + begin;
  for (lapack_int c = 0; c < taken; ++c)
    std::copy_n(panel.data() + static_cast<int64_t>(order[static_cast<size_t>(c)] - 1) * n, n,
                fresh + static_cast<int64_t>(c) * n);
  cblas_dtrsm(CblasColMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, n, taken, 1.0,
              corner.data(), count, fresh, n);
  factor.rank += taken;

  for (lapack_int c = 0; c < taken; ++c) {
    const double* column = fresh + static_cast<int64_t>(c) * n;
    for (int i = 0; i < n; ++i) left[static_cast<size_t>(i)] -= column[i] * column[i];
  }
  for (double& value : left) value = std::max(value, 0.0);
  for (lapack_int c = 0; c < taken; ++c)
    left[static_cast<size_t>(candidates[static_cast<size_t>(order[static_cast<size_t>(c)] - 1)])] =
        0;
  return taken;
}

}  // namespace

std::optional<LowRankFactor> pivoted_cholesky(const PsdMatrix& matrix, double residual_wanted,
                                              int64_t largest_rank) {
  require(residual_wanted > 0, "residual_wanted: expected a positive number, found {}",
          residual_wanted);
  LowRankFactor factor;
  Decay decay;
  std::vector<double> left = matrix.diagonal;  // the diagonal of what is left over
  const double rounding =
      4 * std::numeric_limits<double>::epsilon() * *std::max_element(left.begin(), left.end());
  int64_t formed = 0;
  while (true) {
    factor.residual = std::accumulate(left.begin(), left.end(), 0.0);
    if (factor.residual <= residual_wanted) return factor;
    decay.add(factor.rank, factor.residual);
    if (factor.rank >= largest_rank || decay.hopeless(residual_wanted, largest_rank))
      return std::nullopt;
    // Rows that repeat each other are formed, but not taken: past this the whole matrix is cheaper.
    if (formed >= 2 * matrix.size) return std::nullopt;

    const std::vector<int64_t> candidates = largest_entries(left, std::min(kBlock, matrix.size));
    const std::vector<double> panel = residual_columns(matrix, factor, candidates);
    formed += static_cast<int64_t>(candidates.size());
    // None taken: what is left over is rounding.
    if (append_pivots(candidates, panel, rounding, left, factor) == 0) return std::nullopt;
  }
}

}  // namespace dofla
