// How coordinates are chosen: docs/theory.md, "Coordinates", equations (13) to (15).
#include "dofla/features/coordinates.h"

#include <algorithm>
#include <cmath>

#include <cblas.h>
#include <lapacke.h>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"
#include "dofla/distributed/agreement.h"

namespace dofla {
namespace {

// What is added to every variance, as a share of their mean: a direction that hardly occurs is not
// stretched without bound.
constexpr double kRidge = 1e-2;

using Matrix = std::vector<double>;  // [n, n], symmetric

Matrix product(const Matrix& a, const Matrix& b, int n) {
  Matrix out(a.size());
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0, a.data(), n, b.data(), n,
              0.0, out.data(), n);
  return out;
}

// A power of a positive definite matrix.
Matrix power(Matrix matrix, double exponent, int n) {
  const auto size = static_cast<size_t>(n);
  std::vector<double> values(size);
  const lapack_int info =
      LAPACKE_dsyevd(LAPACK_ROW_MAJOR, 'V', 'U', n, matrix.data(), n, values.data());
  if (info != 0) fail("the eigenvalues of a covariance were not found (LAPACK: {})", info);
  // Rounding may leave the smallest at or below 0.
  const double least = 1e-12 * values.back();
  Matrix scaled = matrix;  // eigenvectors are columns
  for (size_t e = 0; e < size; ++e) {
    const double factor = std::pow(std::max(values[e], least), exponent);
    for (size_t i = 0; i < size; ++i) scaled[i * size + e] *= factor;
  }
  Matrix out(matrix.size());
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, n, 1.0, scaled.data(), n,
              matrix.data(), n, 0.0, out.data(), n);
  return out;
}

// Rows and columns [first, n) of a covariance, with the ridge; nothing if the vectors do not vary.
Matrix varied_block(const Matrix& covariance, int64_t size, int64_t first) {
  const int64_t n = size - first;
  Matrix block(static_cast<size_t>(n * n));
  double trace = 0;
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(covariance.begin() + (first + i) * size + first, n, block.begin() + i * n);
    trace += block[static_cast<size_t>(i * n + i)];
  }
  const double mean = trace / static_cast<double>(n);
  if (!(mean > 0)) return {};
  for (int64_t i = 0; i < n; ++i) block[static_cast<size_t>(i * n + i)] += kRidge * mean;
  return block;
}

// The symmetric A with A C_q A = A⁻¹ C_k A⁻¹, (14).
Matrix balancing_map(const Matrix& queries, const Matrix& keys, int n) {
  const Matrix root = power(queries, 0.5, n), inverse_root = power(queries, -0.5, n);
  const Matrix between = power(product(root, product(keys, root, n), n), 0.5, n);
  Matrix square = product(inverse_root, product(between, inverse_root, n), n);
  const auto side = static_cast<size_t>(n);
  for (size_t i = 0; i < side; ++i)
    for (size_t j = 0; j < i; ++j)
      square[i * side + j] = square[j * side + i] =
          0.5 * (square[i * side + j] + square[j * side + i]);
  return power(std::move(square), 0.5, n);
}

// The mean squared length of each of the parts that a diagonal map may scale: rotated pairs
// (i, i + F), then single coordinates.
std::vector<double> squared_lengths(const Moments& moments, int64_t size, int64_t pairs) {
  std::vector<double> lengths;
  const auto square = [&](int64_t i) { return moments.second[static_cast<size_t>(i * size + i)]; };
  for (int64_t i = 0; i < pairs; ++i) lengths.push_back(square(i) + square(i + pairs));
  for (int64_t i = 2 * pairs; i < size; ++i) lengths.push_back(square(i));
  return lengths;
}

// (E|k|²/E|q|²)^¼ of every part, (15); nothing if there are no queries or no keys to speak of.
std::vector<double> balancing_scales(std::vector<double> queries, std::vector<double> keys) {
  for (std::vector<double>* lengths : {&queries, &keys}) {
    double mean = 0;
    for (const double length : *lengths) mean += length / static_cast<double>(lengths->size());
    if (!(mean > 0)) return {};
    for (double& length : *lengths) length += kRidge * mean;
  }
  std::vector<double> scales;
  for (size_t i = 0; i < keys.size(); ++i) scales.push_back(std::pow(keys[i] / queries[i], 0.25));
  return scales;
}

// One layer at a time.
class Chooser {
 public:
  Chooser(const ModelConfig& config, Coordinates kind)
      : config_(config), kind_(kind), size_(config.head_size), pairs_(config.rope.dims / 2) {}

  // Returns the heads that do not vary.
  std::vector<int64_t> choose(const QueryKeyMoments& moments, int64_t layer,
                              LayerCoordinates& out) const {
    const int64_t heads = config_.kv_heads;
    out.map = Tensor::zeros({heads, size_, size_});
    out.shift = Tensor::zeros({heads, size_});
    std::vector<Moments> queries, keys;
    for (int64_t h = 0; h < heads; ++h) {
      queries.push_back(moments.queries(layer, h));
      keys.push_back(moments.keys(layer, h));
    }
    std::vector<int64_t> unvaried;
    if (kind_ == Coordinates::kBalanced && config_.qk_norm) share_lengths(queries, keys);
    for (int64_t h = 0; h < heads; ++h) {
      const auto at = static_cast<size_t>(h);
      Matrix map = identity();
      if (kind_ == Coordinates::kBalanced && !balance(queries[at], keys[at], map))
        unvaried.push_back(h);
      float* to = out.map.data<float>() + h * size_ * size_;
      for (size_t i = 0; i < map.size(); ++i) to[i] = static_cast<float>(map[i]);
      if (config_.qkv_bias && !config_.qk_norm)
        shift(queries[at], keys[at], to, out.shift.data<float>() + h * size_);
    }
    return unvaried;
  }

 private:
  Matrix identity() const {
    Matrix map(static_cast<size_t>(size_ * size_));
    for (int64_t i = 0; i < size_; ++i) map[static_cast<size_t>(i * size_ + i)] = 1;
    return map;
  }

  // All heads have one weight of the norm: their lengths are averaged.
  void share_lengths(std::vector<Moments>& queries, std::vector<Moments>& keys) const {
    for (std::vector<Moments>* side : {&queries, &keys}) {
      Matrix mean((*side)[0].second.size());
      for (const Moments& head : *side)
        for (size_t i = 0; i < mean.size(); ++i)
          mean[i] += head.second[i] / static_cast<double>(side->size());
      for (Moments& head : *side) head.second = mean;
    }
  }

  // False if there is nothing to balance; the map is then as it was.
  bool balance(const Moments& queries, const Moments& keys, Matrix& map) const {
    // With q/k norms every coordinate can only be scaled; else those that are not rotated are free.
    const int64_t single = config_.qk_norm ? size_ : 2 * pairs_;
    const auto diagonal = [&](int64_t i) -> double& {
      return map[static_cast<size_t>(i * size_ + i)];
    };
    if (single > 0) {
      std::vector<double> of_queries = squared_lengths(queries, size_, pairs_);
      std::vector<double> of_keys = squared_lengths(keys, size_, pairs_);
      of_queries.resize(static_cast<size_t>(single - pairs_));
      of_keys.resize(of_queries.size());
      const std::vector<double> scales = balancing_scales(of_queries, of_keys);
      if (scales.empty()) return false;
      for (int64_t i = 0; i < single; ++i) {
        const int64_t part = i < 2 * pairs_ ? i % pairs_ : i - pairs_;
        diagonal(i) = scales[static_cast<size_t>(part)];
      }
    }
    if (single == size_) return true;
    const int64_t n = size_ - single;
    const Matrix of_queries = varied_block(queries.covariance, size_, single);
    const Matrix of_keys = varied_block(keys.covariance, size_, single);
    if (of_queries.empty() || of_keys.empty()) return false;
    const Matrix block = balancing_map(of_queries, of_keys, static_cast<int>(n));
    for (int64_t i = 0; i < n; ++i)
      std::copy_n(block.begin() + i * n, n, map.begin() + (single + i) * size_ + single);
    return true;
  }

  // c = mean k + Aᵀ A mean q, so that the mean of q' + k' is 0, (13); only where nothing is
  // rotated.
  void shift(const Moments& queries, const Moments& keys, const float* map, float* to) const {
    const auto size = static_cast<size_t>(size_);
    std::vector<double> mapped(size), back(size);
    for (size_t i = 0; i < size; ++i)
      for (size_t j = 0; j < size; ++j) mapped[i] += double{map[i * size + j]} * queries.mean[j];
    for (size_t i = 0; i < size; ++i)
      for (size_t j = 0; j < size; ++j) back[j] += double{map[i * size + j]} * mapped[i];
    for (size_t i = static_cast<size_t>(2 * pairs_); i < size; ++i)
      to[i] = static_cast<float>(keys.mean[i] + back[i]);
  }

  const ModelConfig& config_;
  Coordinates kind_;
  int64_t size_, pairs_;
};

}  // namespace

CoordinateSet choose_coordinates(const ModelConfig& config, const QueryKeyMoments& moments,
                                 Coordinates kind) {
  CoordinateSet set = {.kind = kind};
  if (kind == Coordinates::kRaw) return set;
  set.layers.resize(static_cast<size_t>(config.layers));
  std::vector<std::vector<int64_t>> unvaried(set.layers.size());
  const Chooser chooser(config, kind);
  parallel_for(config.layers, [&](int64_t layer) {
    const SingleThreaded one_thread;
    const auto at = static_cast<size_t>(layer);
    unvaried[at] = chooser.choose(moments, layer, set.layers[at]);
  });
  for (int64_t layer = 0; layer < config.layers; ++layer)
    for (const int64_t head : unvaried[static_cast<size_t>(layer)])
      set.unvaried.emplace_back(layer, head);
  return set;
}

CoordinateSet measure_coordinates(const Transformer& model, const std::vector<TokenIds>& sequences,
                                  Coordinates kind, const Progress& progress, const Group& group) {
  if (kind == Coordinates::kRaw) return {};
  QueryKeyMoments moments(model.config());
  const Progress pace = at_own_pace(group, progress);
  const Share own = group.share(std::ssize(sequences));
  for (int64_t i = own.begin; i < own.end; ++i) {
    model.forward(to_tensor(sequences[static_cast<size_t>(i)]),
                  {.state = nullptr, .observer = moments.observer(), .heads_only = true});
    report(pace, {.stage = "coordinates",
                  .done = i - own.begin + 1,
                  .total = std::ssize(sequences),
                  .unit = "sequences"});
  }
  moments.sum(group);
  return choose_coordinates(model.config(), moments, kind);
}

}  // namespace dofla
