#include "dofla/dof/measure.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/parallel.h"
#include "dofla/data/batches.h"
#include "dofla/distributed/agreement.h"
#include "dofla/dof/each_draw.h"
#include "dofla/dof/estimate.h"
#include "dofla/dof/feature_errors.h"
#include "dofla/ops/ridge_traces.h"

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
  const int64_t most =
      2 * tokens * config.heads / feature_heads(options.features, config.heads, config.kv_heads);
  if (options.samples > most)
    fail(
        "{} samples a head were asked for, but {} tokens give only {} queries and keys: give more "
        "or longer sequences, or ask for fewer samples",
        options.samples, tokens, most);
}

std::vector<double> head_spectrum(const Tensor& sample, const DofTable& table) {
  const SingleThreaded one_thread;
  return spectrum(gram_matrix(kernel_samples(sample, table.gram)),
                  {.smallest_lambda = table.smallest_lambda, .tolerance = kTableTolerance});
}

// The λ that a table from a GPU answers for: every power of two that one with spectra would be
// asked for in a report, and the one that was asked for.
std::vector<double> lambdas_with(double asked) {
  std::vector<double> lambdas;
  for (double lambda = 1; lambda >= DofTable{}.smallest_lambda; lambda /= 2)
    lambdas.push_back(lambda);
  if (std::find(lambdas.begin(), lambdas.end(), asked) == lambdas.end()) lambdas.push_back(asked);
  return lambdas;
}

}  // namespace

void add_spectra(const QueryKeySampler& sampler, DofTable& table, const Progress& progress,
                 const Group& group) {
  table.spectra.resize(
      static_cast<size_t>(table.model.layers * table.heads_in_layer() * table.draws));
  for_each_draw(table, table.draws, "degrees of freedom", progress, group,
                [&](const HeadDraw& one) {
                  table.spectra[one.row] =
                      head_spectrum(sampler.sample(one.layer, one.head, one.draw), table);
                });
  gather_rows(group, table.spectra);
}

void add_values(const QueryKeySampler& sampler, DofTable& table, const Progress& progress,
                const Group& group) {
  constexpr int64_t kBetweenReports = 144;
  const Tensor samples = sampler.samples();
  const int64_t count = samples.size(0), in_layer = table.heads_in_layer() * table.draws;
  table.lambdas = lambdas_with(table.lambda);
  table.values.resize(static_cast<size_t>(count));
  const Progress pace = at_own_pace(group, progress);
  const Share own = group.share(count);
  for (int64_t begin = own.begin; begin < own.end; begin += kBetweenReports) {
    const int64_t end = std::min(begin + kBetweenReports, own.end);
    const RidgeTraces traces = ridge_traces(samples.slice(begin, end), table.gram, table.lambdas);
    auto inverse = traces.inverse.begin();
    for (int64_t i = begin; i < end; ++i) {
      const double gram = traces.gram[static_cast<size_t>(i - begin)];
      if (std::isnan(gram))
        fail("layer {}, head {}: a query or key is not finite", i / in_layer + 1,
             i % in_layer / table.draws + 1);
      std::vector<double>& values = table.values[static_cast<size_t>(i)];
      for (const double lambda : table.lambdas)
        values.push_back(
            degrees_of_freedom(gram, *inverse++, table.samples, lambda, kLargestRounding));
    }
    report(
        pace,
        {.stage = "degrees of freedom", .done = end - own.begin, .total = count, .unit = "heads"});
  }
  gather_rows(group, table.values);
}

DofTable measure_dof(const Transformer& teacher, const std::vector<std::vector<int64_t>>& sequences,
                     const DofOptions& options, uint64_t seed, const Progress& progress,
                     const Group& group) {
  const ModelConfig& config = teacher.config();
  check(config, sequences, options);
  const int64_t heads = feature_heads(options.features, config.heads, config.kv_heads);
  QueryKeySampler sampler(config, {options.samples, options.draws, seed, heads});
  DofTable table = {.model = identity_of(config),
                    .coordinates = Coordinates::kRaw,
                    .feature_heads = heads,
                    .gram = options.gram,
                    .lambda = options.lambda,
                    .smallest_lambda = std::min(options.lambda, DofTable{}.smallest_lambda),
                    .samples = options.samples,
                    .draws = options.draws,
                    .sequences = static_cast<int64_t>(sequences.size()),
                    .length = 0,
                    .seed = seed,
                    .spectra = {},
                    .lambdas = {},
                    .values = {},
                    .ladder = {},
                    .errors = {}};
  const Progress pace = at_own_pace(group, progress);
  const Share own = group.share(table.sequences);
  for (int64_t i = 0; i < table.sequences; ++i) {
    const std::vector<int64_t>& sequence = sequences[static_cast<size_t>(i)];
    const auto length = static_cast<int64_t>(sequence.size());
    table.length = std::max(table.length, length);
    if (i < own.begin || i >= own.end) {
      sampler.pass_over(length, teacher.device());
      continue;
    }
    teacher.forward(to_tensor(sequence), {.state = nullptr, .observer = sampler.observer()});
    report(pace, {.stage = "queries and keys",
                  .done = i - own.begin + 1,
                  .total = table.sequences,
                  .unit = "sequences"});
  }
  sampler.sum(group);
  const auto add = sampler.samples().device().is_cuda() ? add_values : add_spectra;
  add(sampler, table, progress, group);
  if (options.errors) add_errors(sampler, table, progress, group);
  return table;
}

DofTable measure_dof(const Checkpoint& checkpoint, Coordinates coordinates,
                     const std::vector<std::vector<int64_t>>& sequences, const DofOptions& options,
                     uint64_t seed, const Device& device, const Progress& progress,
                     const Group& group) {
  const Transformer original(checkpoint, device);
  check(original.config(), sequences, options);  // before anything runs
  require_same(group, "text", group.alone() ? "" : fingerprint_of(sequences));
  require_same_weights(group, checkpoint);
  const CoordinateSet chosen =
      measure_coordinates(original, sequences, coordinates, progress, group);
  DofTable table = measure_dof(Transformer(in_coordinates(checkpoint, chosen), device), sequences,
                               options, seed, progress, group);
  table.coordinates = coordinates;
  return table;
}

}  // namespace dofla
