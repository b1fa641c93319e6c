// The degrees of freedom of whole models: the GPU's factorisations against the CPU's spectra.
#include "dofla/dof/measure.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dofla/data/batches.h"
#include "dofla/ops/heads.h"
#include "tests/support/fixtures.h"
#include "tests/support/gpu.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

class CudaMeasureDof : public test::OnGpu {
 protected:
  static std::vector<std::vector<int64_t>> some_text(const ModelConfig& config) {
    std::vector<std::vector<int64_t>> sequences(3);
    const int64_t length = std::min<int64_t>(100, config.context);
    for (size_t i = 0; i < sequences.size(); ++i)
      for (int64_t t = 0; t < length; ++t)
        sequences[i].push_back((3 + t * t + 131 * static_cast<int64_t>(i)) % config.vocabulary);
    return sequences;
  }
  // The same samples as measure_dof takes, but from the queries and keys copied to the CPU.
  static QueryKeySampler sample_on_cpu(const Transformer& model,
                                       const std::vector<std::vector<int64_t>>& sequences,
                                       const SampleOptions& options) {
    QueryKeySampler sampler(model.config(), options);
    const Observer observer = [&](int64_t layer, const Tensor& q, const Tensor& k, const Tensor&) {
      sampler.offer(layer, here(contiguous_heads(q)), here(contiguous_heads(k)));
    };
    for (const auto& sequence : sequences)
      model.forward(to_tensor(sequence), {.state = nullptr, .observer = observer});
    return sampler;
  }
};

TEST_F(CudaMeasureDof, GivesTheDegreesOfFreedomOfTheSpectra) {
  const fs::path folders[] = {test::fixtures() / "gpt2", test::fixtures() / "qwen3",
                              test::assets() / "wiki-mini"};
  for (const fs::path& folder : folders) {
    const Transformer teacher(Checkpoint(folder), gpu);
    const auto sequences = some_text(teacher.config());
    const DofTable found =
        measure_dof(teacher, sequences, {.samples = 50, .draws = 2, .lambda = 0.01}, 4);
    EXPECT_EQ(found.lambdas.size(), 18u);  // 2⁻¹⁶ to 1, and 0.01
    EXPECT_TRUE(found.spectra.empty());

    DofTable expected = found;
    expected.lambdas.clear();
    expected.values.clear();
    const SampleOptions sampled = {
        .samples = 50, .draws = 2, .seed = 4, .heads = found.heads_in_layer()};
    add_spectra(sample_on_cpu(teacher, sequences, sampled), expected);
    const auto at_smallest = degrees_of_freedom(expected, expected.smallest_lambda);
    for (const double lambda : found.lambdas) {
      const auto rows = degrees_of_freedom(found, lambda),
                 known = degrees_of_freedom(expected, lambda);
      for (size_t s = 0; s < rows.size(); ++s)
        for (size_t h = 0; h < rows[s].heads.size(); ++h) {
          // What the spectra leave out counts as 1/λ; double precision knows the eigenvalues, of a
          // sum of 1, to √J · eps.
          const double left_out =
              kTableTolerance * at_smallest[s].heads[h].mean * expected.smallest_lambda / lambda;
          const double rounding = 4 * std::sqrt(50.0) * std::numeric_limits<double>::epsilon() * 50;
          EXPECT_NEAR(rows[s].heads[h].mean, known[s].heads[h].mean, left_out + rounding / lambda)
              << folder << " layer " << s << " head " << h << " λ " << lambda;
        }
    }
  }
}

TEST_F(CudaMeasureDof, DrawsTheSamplesThatTheCpuDraws) {
  const Transformer teacher(Checkpoint(test::fixtures() / "llama"), gpu);
  const auto sequences = some_text(teacher.config());
  const SampleOptions options = {.samples = 30, .draws = 3, .seed = 8};
  QueryKeySampler sampler(teacher.config(), options);
  for (const auto& sequence : sequences)
    teacher.forward(to_tensor(sequence), {.state = nullptr, .observer = sampler.observer()});
  const QueryKeySampler expected = sample_on_cpu(teacher, sequences, options);
  EXPECT_TRUE(test::same_bits(here(sampler.samples()), expected.samples()));
}

TEST_F(CudaMeasureDof, NamesTheHeadOfAQueryThatIsNotFinite) {
  ModelConfig config;
  config.layers = config.heads = config.kv_heads = 2;
  config.head_size = 4;
  const SampleOptions options = {.samples = 20, .draws = 1, .seed = 1};
  QueryKeySampler sampler(config, options);
  const Tensor k = Tensor::zeros({1, 2, 10, 4});
  Tensor q = k.clone();
  sampler.offer(0, q.to(gpu), k.to(gpu));
  q.data<float>()[10 * 4] = std::numeric_limits<float>::infinity();
  sampler.offer(1, q.to(gpu), k.to(gpu));
  DofTable table;
  table.model = {"gpt2", 2, 2, 4};
  table.samples = 20;
  table.draws = 1;
  try {
    add_values(sampler, table);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layer 2, head 2"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace dofla
