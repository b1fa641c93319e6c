// Degrees of freedom of many heads against as many bare LAPACK dpotrf + dpotri in the same run.
//   dof_bench [HEADS [SAMPLES]]         144 heads of 2048 samples unless told
//   DOFLA_MODELS=folder dof_bench       queries and keys of folder/gpt2-wiki, else of wiki-mini
// Times are core seconds: every head runs on one core, heads run side by side.
#include <cmath>
#include <cstdlib>
#include <functional>
#include <vector>

#include <fmt/format.h>
#include <lapacke.h>

#include "bench/support/bench_model.h"
#include "bench/support/measure.h"
#include "dofla/core/random.h"
#include "dofla/dof/estimate.h"
#include "dofla/dof/measure.h"
#include "dofla/pipeline/text.h"

namespace dofla::bench {
namespace {

constexpr double kLambda = 0x1p-8;

struct Times {
  double lapack = 0;
  double deep = 0;     // spectrum for every λ ≥ 2⁻¹⁶ to 1e-3: what `dofla dof` does
  double shallow = 0;  // spectrum for every λ ≥ 2⁻⁸ to 1e-3
  double worst = 0;    // relative error of N_λ of the first at 2⁻⁸, against LAPACK's
};

double lapack_dof(std::vector<double>& gram, int64_t J) {
  const auto n = static_cast<lapack_int>(J);
  LAPACKE_dpotrf(LAPACK_COL_MAJOR, 'L', n, gram.data(), n);
  LAPACKE_dpotri(LAPACK_COL_MAJOR, 'L', n, gram.data(), n);
  double trace = 0;
  for (int64_t i = 0; i < J; ++i) trace += gram[static_cast<size_t>(i * J + i)];
  return static_cast<double>(J) - kLambda * trace;
}

Times time_head(const Tensor& sample) {
  const SingleThreaded one_thread;
  const int64_t J = sample.size(0);
  Times times;
  std::vector<double> values;
  times.deep = best_seconds(1, [&] {
    values = spectrum(gram_matrix(kernel_samples(sample, GramScale::kTrace)),
                      {.smallest_lambda = 0x1p-16, .tolerance = kTableTolerance});
  });
  times.shallow = best_seconds(1, [&] {
    spectrum(gram_matrix(kernel_samples(sample, GramScale::kTrace)),
             {.smallest_lambda = kLambda, .tolerance = 1e-3});
  });
  std::vector<double> gram = lower_triangle(gram_matrix(kernel_samples(sample, GramScale::kTrace)));
  for (int64_t i = 0; i < J; ++i) gram[static_cast<size_t>(i * J + i)] += kLambda;
  double expected = 0;
  times.lapack = best_seconds(1, [&] { expected = lapack_dof(gram, J); });
  times.worst = std::abs(degrees_of_freedom(values, kLambda) / expected - 1);
  return times;
}

void print_times(const std::string& what, int64_t heads,
                 const std::function<Tensor(int64_t head)>& sample_of) {
  std::vector<Times> each(static_cast<size_t>(heads));
  parallel_for(heads, [&](int64_t i) { each[static_cast<size_t>(i)] = time_head(sample_of(i)); });
  Times sum;
  int64_t faster = 0;
  for (const Times& times : each) {
    sum.lapack += times.lapack;
    sum.deep += times.deep;
    sum.shallow += times.shallow;
    sum.worst = std::max(sum.worst, times.worst);
    faster += times.deep < times.lapack / 5;
  }
  fmt::print("{:<22} {:>5} {:>9.2f} {:>9.2f} {:>6.2f} {:>9.2f} {:>6.2f} {:>8} {:>9.1e}\n", what,
             heads, sum.lapack, sum.deep, sum.deep / sum.lapack, sum.shallow,
             sum.shallow / sum.lapack, faster, sum.worst);
}

QueryKeySampler sample_model(const fs::path& folder, const SampleOptions& options) {
  const Checkpoint checkpoint(folder);
  const Transformer teacher(checkpoint);
  const WindowSet windows = read_windows(
      checkpoint,
      {.files = {fs::path(DOFLA_SOURCE_DIR) / "assets/wikipedia.jsonl.zst"}, .most = 8});
  QueryKeySampler sampler(teacher.config(), options);
  for (const TokenIds& window : windows)
    teacher.forward(to_tensor(window), {.state = nullptr, .observer = sampler.observer()});
  return sampler;
}

Tensor gaussian(int64_t J, double scale, int64_t head) {
  Random random(1, static_cast<uint64_t>(head));
  Tensor out({J, 64});
  for (int64_t i = 0; i < out.count(); ++i)
    out.data<float>()[i] = static_cast<float>(scale * random.normal());
  return out;
}

void run(int64_t heads, int64_t J) {
  fmt::print(
      "{} samples a head; core seconds; deep: every λ ≥ 2^-16 to 1e-3, shallow: every λ ≥ "
      "2^-8 to 1e-3\n{:<22} {:>5} {:>9} {:>9} {:>6} {:>9} {:>6} {:>8} {:>9}\n",
      J, "", "heads", "LAPACK", "deep", "ratio", "shallow", "ratio", "< 1/5", "error");
  const fs::path folder = bench_model();
  const ModelConfig config = Checkpoint(folder).config();
  const int64_t in_model = config.layers * config.heads;
  const QueryKeySampler sampler =
      sample_model(folder, {.samples = J, .draws = (heads + in_model - 1) / in_model, .seed = 1});
  // Layer and head vary fastest, so that a short run sees as many different heads as it can.
  print_times(folder.filename().string(), heads, [&](int64_t i) {
    return sampler.sample(i % in_model / config.heads, i % config.heads, i / in_model);
  });
  for (const double scale : {1.0, 2.0, 3.0})
    print_times(fmt::format("Gaussian, scale {}", scale), std::max<int64_t>(1, heads / 12),
                [&](int64_t i) { return gaussian(J, scale, i); });
}

}  // namespace
}  // namespace dofla::bench

int main(int argc, char** argv) {
  const int64_t heads = argc > 1 ? std::atoll(argv[1]) : 144;
  const int64_t samples = argc > 2 ? std::atoll(argv[2]) : 2048;
  try {
    dofla::bench::run(heads, samples);
  } catch (const std::exception& error) {
    fmt::print(stderr, "dof_bench: {}\n", error.what());
    return 1;
  }
}
