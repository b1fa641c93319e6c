#include "dofla/dof/measure.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/parallel.h"
#include "dofla/dof/estimate.h"

namespace dofla {
namespace {

void check(const ModelConfig& config, const std::vector<std::vector<int64_t>>& sequences,
           const DofOptions& options) {
  if (!(options.lambda > 0 && std::isfinite(options.lambda)))
    fail("λ: expected a positive number, found {:g}", options.lambda);
  int64_t tokens = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto length = static_cast<int64_t>(sequences[i].size());
    if (length < 1 || length > config.context)
      fail("sequence {} has {} tokens, but the model's context is {}: use a shorter length", i + 1,
           length, config.context);
    tokens += length;
  }
  // Known before the teacher has run for minutes.
  if (options.sample.samples > 2 * tokens)
    fail(
        "{} samples a head were asked for, but {} tokens give only {} queries and keys: give more "
        "or longer sequences, or ask for fewer samples",
        options.sample.samples, tokens, 2 * tokens);
}

std::vector<double> head_spectrum(const Tensor& sample, const DofTable& table) {
  const SingleThreaded one_thread;
  return spectrum(gram_matrix(kernel_samples(sample, table.gram)),
                  {.smallest_lambda = table.smallest_lambda, .tolerance = kTableTolerance});
}

}  // namespace

void add_spectra(const QueryKeySampler& sampler, DofTable& table, const Progress& progress) {
  const int64_t heads = table.model.heads, draws = table.draws;
  const int64_t count = table.model.layers * heads * draws;
  table.spectra.resize(static_cast<size_t>(count));
  int64_t done = 0;
  parallel_for(count, [&](int64_t i) {
    const int64_t layer = i / (heads * draws), head = i / draws % heads;
    try {
      table.spectra[static_cast<size_t>(i)] =
          head_spectrum(sampler.sample(layer, head, i % draws), table);
    } catch (const Error& error) {
      fail("layer {}, head {}: {}", layer + 1, head + 1, error.what());
    }
    // One thread at a time may talk to the caller, and the count it tells only grows.
#pragma omp critical(dofla_dof_progress)
    report(progress,
           {.stage = "degrees of freedom", .done = ++done, .total = count, .unit = "heads"});
  });
}

DofTable measure_dof(const Transformer& teacher, const std::vector<std::vector<int64_t>>& sequences,
                     const DofOptions& options, const Progress& progress) {
  const ModelConfig& config = teacher.config();
  check(config, sequences, options);
  QueryKeySampler sampler(config, options.sample);
  DofTable table = {.model = identity_of(config),
                    .gram = options.gram,
                    .lambda = options.lambda,
                    .smallest_lambda = std::min(options.lambda, DofTable{}.smallest_lambda),
                    .samples = options.sample.samples,
                    .draws = options.sample.draws,
                    .sequences = static_cast<int64_t>(sequences.size()),
                    .length = 0,
                    .seed = options.sample.seed,
                    .spectra = {}};
  int64_t done = 0;
  for (const std::vector<int64_t>& sequence : sequences) {
    const auto length = static_cast<int64_t>(sequence.size());
    Tensor ids({1, length}, DType::kI64);
    std::copy(sequence.begin(), sequence.end(), ids.data<int64_t>());
    teacher.forward(ids, {.state = nullptr, .observer = sampler.observer()});
    table.length = std::max(table.length, length);
    report(progress, {.stage = "queries and keys",
                      .done = ++done,
                      .total = table.sequences,
                      .unit = "sequences"});
  }
  add_spectra(sampler, table, progress);
  return table;
}

}  // namespace dofla
