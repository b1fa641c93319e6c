#include "tests/support/sample_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "dofla/core/random.h"

namespace dofla::test {
namespace {

constexpr double kLambda = 0x1p-8;
constexpr int64_t kSamples = 1024;

constexpr std::array<std::array<double, 12>, 12> kPaperDof = {{
    {4.7, 8.1, 4.5, 2.0, 3.6, 16.2, 4.5, 2.6, 4.1, 6.4, 5.0, 150.0},
    {10.5, 28.5, 155.1, 44.6, 173.8, 51.1, 9.9, 16.5, 17.5, 8.1, 88.9, 19.5},
    {9.9, 8.1, 1.8, 2.7, 3.4, 2.5, 24.5, 5.8, 2.8, 2.6, 12.1, 6.4},
    {15.1, 3.0, 1.4, 1.7, 39.8, 12.1, 1.6, 1.5, 1.5, 2.5, 12.6, 1.9},
    {1.8, 1.8, 11.3, 1.8, 42.1, 2.3, 4.0, 7.1, 22.6, 3.3, 31.6, 1.1},
    {8.9, 3.1, 3.7, 3.5, 3.7, 3.0, 6.9, 7.5, 4.7, 52.4, 21.4, 66.6},
    {3.3, 6.9, 68.9, 14.4, 43.5, 17.2, 107.4, 6.0, 4.3, 1.8, 32.2, 3.0},
    {3.6, 11.9, 3.1, 12.3, 7.6, 17.5, 33.0, 9.1, 4.9, 5.1, 2.3, 12.6},
    {24.9, 6.5, 19.6, 9.3, 5.5, 3.2, 10.2, 3.1, 5.7, 16.7, 22.4, 3.9},
    {18.5, 13.1, 15.9, 3.3, 22.7, 29.9, 14.1, 6.4, 20.2, 5.1, 3.9, 6.2},
    {7.9, 6.6, 26.1, 19.8, 18.2, 3.3, 8.7, 6.7, 43.2, 2.3, 17.1, 13.5},
    {5.1, 21.8, 22.5, 10.6, 30.0, 39.8, 27.2, 31.3, 5.0, 20.0, 2.8, 2.6},
}};
constexpr std::array<int64_t, 12> kPaperDims = {130, 182, 35, 44, 42, 65, 92, 33, 28, 34, 46, 39};

using Spectrum = std::vector<double>;

// σ_i = (i + 1)^-power, scaled to the trace 1.
Spectrum power_law(double power) {
  Spectrum spectrum;
  double trace = 0;
  for (int64_t i = 0; i < kSamples; ++i)
    trace += spectrum.emplace_back(std::pow(static_cast<double>(i + 1), -power));
  for (double& value : spectrum) value /= trace;
  return spectrum;
}

double dof_of(const Spectrum& spectrum, double lambda) {
  double sum = 0;
  for (const double value : spectrum) sum += value / (value + lambda);
  return sum;
}

// The power law with the given degrees of freedom: they fall as the power grows.
Spectrum spectrum_with(double dof) {
  double low = 0, high = 60;
  for (int i = 0; i < 24; ++i) {
    const double middle = (low + high) / 2;
    (dof_of(power_law(middle), kLambda) > dof ? low : high) = middle;
  }
  return power_law(low);
}

Curve at_ranks(const Spectrum& spectrum) {
  Curve curve;
  for (double rank = 1; rank <= kSamples; rank *= std::exp2(0.25)) {
    const double whole = std::round(rank);
    if (curve.empty() || whole > curve.back().x)
      curve.push_back({whole, spectrum[static_cast<size_t>(whole) - 1]});
  }
  return curve;
}

LayerDof layer_with(const std::vector<double>& heads) {
  LayerDof layer;
  for (const double dof : heads) {
    const Spectrum spectrum = spectrum_with(dof);
    layer.heads.push_back({dof, 0.04 * dof + 0.05, at_ranks(spectrum)});
    if (dof < *std::max_element(heads.begin(), heads.end())) continue;
    for (int exponent = -16; exponent <= 0; ++exponent) {
      const double lambda = std::exp2(exponent);
      layer.dof_by_lambda.push_back({lambda, dof_of(spectrum, lambda)});
    }
  }
  return layer;
}

Curve loss_curve(Random& random, double begin, double end, int64_t steps) {
  Curve curve;
  for (int64_t step = 1; step <= steps; ++step) {
    const double share = std::exp(-static_cast<double>(step) / (0.15 * static_cast<double>(steps)));
    const double noise = std::exp(0.02 * random.normal());
    curve.push_back({static_cast<double>(step), (end + (begin - end) * share) * noise});
  }
  return curve;
}

}  // namespace

ReportData paper_report() {
  ReportData data;
  data.title = "Degrees of freedom of GPT-2";
  data.model = "gpt2 · 12 layers, 12 heads of 64, 124 million parameters";
  data.dof = DofSection{kLambda, "trace", kSamples, 8, {}};
  data.plan = PlanSection{"dof", 64, {}};
  data.training = TrainingSection{};
  Random random(7);
  for (size_t s = 0; s < kPaperDof.size(); ++s) {
    data.dof->layers.push_back(layer_with({kPaperDof[s].begin(), kPaperDof[s].end()}));
    const auto m = static_cast<double>(kPaperDims[s]);
    data.plan->layers.push_back({std::vector<int64_t>(12, kPaperDims[s]), 0.05 * m});
    data.training->layer_loss.push_back(
        loss_curve(random, 0.4 + 0.3 * random.uniform(), 0.02 + 0.0007 * m, 400));
  }
  data.training->loss = "softmax";
  data.training->teacher_loss = 3.356;
  data.training->student_loss = 4.017;
  data.training->kl = 0.6431;
  data.training->same_top = 0.6182;
  data.training->state_bytes = 12 * 12 * 64 * 65 * 4;
  data.training->cache_bytes = 12 * 2 * 768 * 1024 * 4;
  data.training->context = 1024;
  data.training->tokens_per_second = 18342;
  data.training->controls = {{"a window of 64 keys alone", 3.544, 2396160},
                             {"a cache of 64 keys alone", 3.468, 2396160}};
  data.training->controls_notes = {
      "the linear part does not pay here: the student does not beat a window of 64 keys alone, a "
      "cache of 64 keys alone"};
  data.facts = {{"data", "wiki.jsonl, 3 276 800 tokens"},
                {"features", "prf, orthogonal start"},
                {"steps", "400 of 8 × 1024 tokens, 0 skipped"}};
  data.command = "dofla distill gpt2 --data wiki.jsonl --cost 64 --strategy dof --out gpt2-linear";
  data.version = "0.1.0";
  return data;
}

ReportData hostile_report() {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const std::string name =
      "</title></script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&\x01\xff\xc0\xaf"
      "\u202e" +
      std::string(400, 'w');
  ReportData data;
  data.title = data.model = data.command = data.version = name;
  data.facts = {{name, name}};
  data.dof = DofSection{nan, name, -1, 0, {}};
  data.dof->layers = {
      {{{nan, nan, {{1, nan}, {nan, 1}}}, {inf, -inf, {}}, {-3, 0, {{1, 1}}}}, {}},
      {{}, {{0, 1}, {-1, 1}, {1, inf}}},
      {{{1e300, 1e300, {{1e300, 1e300}}}, {1e-300, 0, {}}}, {{1, 1e300}, {2, 1e-300}}}};
  data.plan = PlanSection{name, inf, {{{}, nan}, {{0, -5}, 1}, {{INT64_MAX, 1}, inf}}};
  data.training = TrainingSection{};
  data.training->loss = name;
  data.training->layer_loss = {{}, {{1, nan}, {2, 0.5}, {3, inf}, {4, 0.25}}, {{nan, nan}}};
  data.training->floor = {nan, inf, -1};
  data.training->floor_name = name;
  data.training->layer_error = {nan, inf, -1, 1e300};
  data.training->student_loss = nan;
  data.training->kl = -inf;
  data.training->tokens_per_second = 1e308;
  data.training->controls = {{name, nan, -1}, {"a window", inf, INT64_MAX}};
  data.training->controls_notes = {name};
  return data;
}

ReportData large_report() {
  ReportData data;
  data.title = "Degrees of freedom of GPT-2 XL";
  data.model = "gpt2-xl · 48 layers, 25 heads of 64";
  data.dof = DofSection{kLambda, "trace", kSamples, 8, {}};
  data.plan = PlanSection{"dof-head", 64, {}};
  data.training = TrainingSection{};
  Random random(11);
  for (int64_t s = 0; s < 48; ++s) {
    std::vector<double> heads;
    std::vector<int64_t> dims;
    for (int64_t h = 0; h < 25; ++h) {
      heads.push_back(std::exp(2 + 1.1 * random.normal() - 0.02 * static_cast<double>(s)));
      dims.push_back(std::max<int64_t>(1, std::llround(20 * std::sqrt(heads.back()))));
    }
    data.dof->layers.push_back(layer_with(heads));
    data.plan->layers.push_back({dims, 3});
    data.training->layer_loss.push_back(
        loss_curve(random, 0.3 + 0.4 * random.uniform(), 0.05 + 0.1 * random.uniform(), 1000));
  }
  data.training->loss = "attention-mse";
  data.version = "0.1.0";
  return data;
}

}  // namespace dofla::test
