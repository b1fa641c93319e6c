// The layerwise losses on a GPU against their definition in double precision, for inputs in float32
// and in bf16; a step along their gradients against the CPU.
#include "dofla/ops/feature_loss.h"

#include <limits>

#include "dofla/ops/feature_step.h"
#include "tests/ops/cuda/attention_on_gpu.h"
#include "tests/reference/feature_loss.h"
#include "tests/support/fixtures.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

using reference::AttentionCase;
using test::kPrecisions;

class CudaFeatureLoss : public test::AttentionOnGpu {
 protected:
  static constexpr FeatureLossKind kKinds[] = {FeatureLossKind::kSoftmax, FeatureLossKind::kL2,
                                               FeatureLossKind::kAttentionMse};
  static constexpr PairMask kMasks[] = {PairMask::kCausal, PairMask::kFull};

  static AttentionCase far_apart() {
    return reference::fixture_case(test::fixtures() / "features_extreme.safetensors");
  }
  static std::vector<AttentionCase> large_cases() {
    std::vector<AttentionCase> all = cases();
    all.push_back(far_apart());
    all.push_back(reference::untied_near(far_apart()));
    return all;
  }

  // Two by two tiles, the last ones almost empty, for every kernel that a loss has: both widths,
  // whole and in part; heads of one group of features, of two and of more than one window; and, in
  // float32 at the larger width, only one tile of keys at a time.
  static std::vector<AttentionCase> small_cases() {
    return {reference::random_case({.tokens = 70, .width = 64, .counts = {17, 140}}),
            reference::random_case({.tokens = 70, .width = 80, .counts = {33, 70}}),
            reference::random_case({.tokens = 70, .width = 64, .counts = {17, 140}, .group = 2}),
            reference::random_case(
                {.batch = 2, .tokens = 70, .width = 80, .counts = {33, 70}, .group = 1})};
  }

  FeatureLoss on_gpu(const AttentionCase& c, DType dtype, const FeatureLossOptions& options,
                     const std::vector<double>& rest = {}) const {
    const Tensor of_rows =
        rest.empty() ? Tensor() : reference::to_tensor(rest, {c.batch, c.heads, c.tokens}).to(gpu);
    return feature_loss(there(c.q_tensor(), dtype), there(c.k_tensor(), dtype),
                        c.features().to(gpu), options, of_rows);
  }

  void expect_step(const AttentionCase& c) const;

  void compare(const AttentionCase& given, FeatureLossKind kind) const {
    if (given.tokens == 1) return;  // one pair: the normalised losses are constant
    for (const PairMask mask : kMasks) compare(given, {kind, mask}, false);
  }

  void compare(const AttentionCase& given, const FeatureLossOptions& options,
               bool with_rest) const {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const AttentionCase c = rounded(given, dtype);
      // A number in two bf16 parts is off by 2^-18 of it, and a product of two such numbers leaves
      // out as much once more. K̂ is made of such products; a gradient of three in a row, with
      // weights and shares as new factors, or for bf16 inputs of three factors in a single part.
      // Twice that, as errors of rows add up like a random walk.
      constexpr double kTwoParts = 0x1p-18, kOnePart = 0x1p-9;
      const double error = reference::pair_error(c) + 2 * 3 * kTwoParts;
      const double gradient_error =
          error + 2 * (dtype == DType::kF32 ? 7 * kTwoParts : 3 * kOnePart);
      const std::vector<double> rest = with_rest ? reference::every_rest(c) : std::vector<double>();
      const std::string what =
          fmt::format("{}, loss {} mask {} block {}{}", name_of(c, dtype), int(options.kind),
                      int(options.mask), options.block, with_rest ? " with a rest" : "");
      FeatureLoss found = on_gpu(c, dtype, options, rest);
      found.per_head = found.per_head.to(Device());
      for (auto [part_name, part] : feature_parts(found.grad))
        if (part->defined()) *part = part->to(Device());
      const auto expected = reference::feature_loss(c, options, rest);
      reference::expect_loss(found, expected, error, what);
      reference::expect_gradients(found, expected, gradient_error, what);
    }
  }
};

TEST_F(CudaFeatureLoss, Softmax) {
  for (const AttentionCase& c : small_cases()) compare(c, FeatureLossKind::kSoftmax);
}

TEST_F(CudaFeatureLoss, L2) {
  for (const AttentionCase& c : small_cases()) compare(c, FeatureLossKind::kL2);
}

TEST_F(CudaFeatureLoss, AttentionMse) {
  for (const AttentionCase& c : small_cases()) compare(c, FeatureLossKind::kAttentionMse);
}

TEST_F(CudaFeatureLoss, WhereProductsVanish) {
  for (const FeatureLossKind kind : kKinds) {
    compare(far_apart(), kind);
    compare(reference::untied_near(far_apart()), kind);
  }
}

TEST_F(CudaFeatureLoss, Rest) {
  for (const AttentionCase& c : small_cases())
    for (const FeatureLossKind kind : kKinds)
      for (const PairMask mask : kMasks) compare(c, {kind, mask}, true);
}

TEST_F(CudaFeatureLoss, RestWhereProductsVanish) {
  for (const AttentionCase& c : {far_apart(), reference::untied_near(far_apart())})
    for (const FeatureLossKind kind : kKinds)
      for (const PairMask mask : kMasks) compare(c, {kind, mask}, true);
}

// Tied features of one window and of several, and untied ones.
TEST_F(CudaFeatureLoss, Blocks) {
  for (const int64_t group : {0, 2}) {
    const AttentionCase c = reference::random_case(
        {.batch = 2, .tokens = 128, .width = 64, .counts = {17, 140}, .group = group});
    for (const FeatureLossKind kind : kKinds)
      for (const int64_t block : {4, 16, 64})
        for (const bool with_rest : {false, true})
          compare(c, {.kind = kind, .block = block}, with_rest);
  }
}

TEST_F(CudaFeatureLoss, PaddingCountsForNothing) {
  const AttentionCase c = reference::random_case(
      {.batch = 2, .tokens = 128, .width = 64, .counts = {17, 140}, .query_scale = 3});
  const int64_t rows = c.batch * c.heads * c.tokens;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const FeatureLossKind kind : kKinds) {
      const FeatureLossOptions options = {.kind = kind, .block = 16};
      const std::vector<double> rest(static_cast<size_t>(rows), kPaddedRest);
      const FeatureLoss loss = on_gpu(c, dtype, options, rest);
      for (const Tensor& part : {loss.per_head, loss.grad.z, loss.grad.log_alpha})
        for (const double x : reference::to_doubles(part.to(Device()))) EXPECT_EQ(x, 0);
    }
}

TEST_F(CudaFeatureLoss, NoRestIsTheLossWithoutIt) {
  for (const AttentionCase& c : small_cases())
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const FeatureLossKind kind : kKinds) {
        const std::vector<double> none(static_cast<size_t>(c.batch * c.heads * c.tokens),
                                       -std::numeric_limits<double>::infinity());
        EXPECT_TRUE(test::same_bits(here(on_gpu(c, dtype, {kind}, none).grad.z),
                                    here(on_gpu(c, dtype, {kind}).grad.z)))
            << name_of(c, dtype) << ", loss " << int(kind);
      }
}

TEST_F(CudaFeatureLoss, EveryKindLarge) {
  for (const AttentionCase& c : large_cases())
    for (const FeatureLossKind kind : kKinds) compare(c, kind);
}

TEST_F(CudaFeatureLoss, GivesTheSameBitsLarge) {
  for (const AttentionCase& c : large_cases())
    for (const auto& [dtype, relative] : kPrecisions)
      for (const FeatureLossKind kind : kKinds)
        for (const PairMask mask : kMasks)
          EXPECT_TRUE(test::same_bits(here(on_gpu(c, dtype, {kind, mask}).grad.z),
                                      here(on_gpu(c, dtype, {kind, mask}).grad.z)))
              << name_of(c, dtype) << ", loss " << int(kind) << " mask " << int(mask);
}

void CudaFeatureLoss::expect_step(const AttentionCase& c) const {
  Features cpu = c.features(), there_features = c.features().to(gpu);
  FeatureMoments moments = new_feature_moments(cpu);
  FeatureMoments gpu_moments = new_feature_moments(there_features);
  const FeatureLoss loss = feature_loss(c.q_tensor(), c.k_tensor(), cpu);
  for (int step = 0; step < 3; ++step) {
    FeatureGradients grad = loss.grad;
    for (auto [part_name, part] : feature_parts(grad))
      if (part->defined()) *part = part->to(gpu);
    feature_step(loss.per_head, loss.grad, {0.1, 0.2, 0.05}, moments, cpu);
    feature_step(loss.per_head.to(gpu), grad, {0.1, 0.2, 0.05}, gpu_moments, there_features);
  }
  const auto found = feature_parts(there_features);
  const auto wanted = feature_parts(cpu);
  for (size_t i = 0; i < found.size(); ++i)
    if (wanted[i].second->defined())
      expect_close(*found[i].second, *wanted[i].second, 8 * 0x1p-23, std::string(found[i].first));
}

TEST_F(CudaFeatureLoss, FeatureStep) {
  expect_step(reference::random_case({.tokens = 40, .width = 16, .counts = {9, 24}}));
  expect_step(reference::random_case({.tokens = 40, .width = 16, .counts = {9, 24}, .group = 3}));
}

}  // namespace
}  // namespace dofla
