#include "dofla/dof/measure.h"

#include <map>

#include <gtest/gtest.h>

#include "dofla/checkpoint/safetensors.h"
#include "dofla/core/parallel.h"
#include "tests/reference/dof.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

struct Teacher {
  explicit Teacher(const std::string& name)
      : folder(test::fixtures() / name), model(Checkpoint(folder)) {
    const Tensor ids = Safetensors(folder / "expected.safetensors").tensor("input_ids");
    const Tensor whole = ids.to(DType::kI64);
    for (int64_t b = 0; b < ids.size(0); ++b) {
      const int64_t* row = whole.data<int64_t>() + b * ids.size(1);
      sequences.emplace_back(row, row + ids.size(1));
    }
  }

  fs::path folder;
  Transformer model;
  std::vector<std::vector<int64_t>> sequences;
};

// All queries and keys of a head as Transformers gives them, [2·B·T, D].
Tensor vectors_of(const Teacher& teacher, int64_t layer, int64_t head) {
  const Safetensors expected(teacher.folder / "expected.safetensors");
  const Tensor q = expected.tensor(fmt::format("q.{}", layer)).to(DType::kF32);
  const Tensor k = expected.tensor(fmt::format("k.{}", layer)).to(DType::kF32);
  const int64_t B = q.size(0), H = q.size(1), T = q.size(2), D = q.size(3), Hkv = k.size(1);
  Tensor out({2 * B * T, D});
  float* to = out.data<float>();
  for (int64_t b = 0; b < B; ++b) {
    to = std::copy_n(q.data<float>() + (b * H + head) * T * D, T * D, to);
    to = std::copy_n(k.data<float>() + (b * Hkv + head * Hkv / H) * T * D, T * D, to);
  }
  return out;
}

// With as many samples as there are vectors nothing is left to chance. The model's float32 queries
// and keys differ from Transformers' by about 1e-6 of their size, and so do the exponents.
TEST(MeasureDof, AgreesWithTheQueriesAndKeysOfTransformers) {
  for (const std::string name : {"gpt2", "llama", "qwen3"}) {
    const Teacher teacher(name);
    const auto tokens =
        static_cast<int64_t>(teacher.sequences.size() * teacher.sequences[0].size());
    DofOptions options;
    options.samples = 2 * tokens;
    options.draws = 1;
    options.lambda = 0x1p-8;
    options.features = FeatureMap::kPrf;
    const DofTable table = measure_dof(teacher.model, teacher.sequences, options, 5);
    const auto rows = degrees_of_freedom(table, table.lambda);
    for (int64_t s = 0; s < table.model.layers; ++s)
      for (int64_t h = 0; h < table.model.heads; ++h) {
        const Tensor vectors = vectors_of(teacher, s, h);
        const auto expected = static_cast<double>(
            reference::degrees_of_freedom(reference::gram(vectors, GramScale::kTrace), 0x1p-8L));
        const auto largest = static_cast<double>(reference::log_divisor(vectors, GramScale::kMax));
        EXPECT_NEAR(rows[static_cast<size_t>(s)].heads[static_cast<size_t>(h)].mean, expected,
                    1e-5 * (1 + largest) * expected)
            << name << " layer " << s << " head " << h;
      }
  }
}

// A key head's Gram matrix is of the queries of all its query heads, and of its keys as many times.
TEST(MeasureDof, AKeyHeadPoolsTheVectorsOfItsQueryHeads) {
  const Teacher teacher("qwen3");
  const ModelConfig& config = teacher.model.config();
  const int64_t group = config.heads / config.kv_heads;
  ASSERT_GT(group, 1);
  const auto tokens = static_cast<int64_t>(teacher.sequences.size() * teacher.sequences[0].size());
  const DofTable table =
      measure_dof(teacher.model, teacher.sequences,
                  {.samples = 2 * tokens * group, .draws = 1, .features = FeatureMap::kUntied}, 5);
  const auto rows = degrees_of_freedom(table, table.lambda);
  for (int64_t g = 0; g < config.kv_heads; ++g) {
    Tensor pooled({2 * tokens * group, config.head_size});
    for (int64_t i = 0; i < group; ++i)
      pooled.slice(2 * tokens * i, 2 * tokens * (i + 1))
          .assign(vectors_of(teacher, 0, g * group + i));
    const auto expected = static_cast<double>(reference::degrees_of_freedom(
        reference::gram(pooled, GramScale::kTrace), static_cast<long double>(table.lambda)));
    const auto largest = static_cast<double>(reference::log_divisor(pooled, GramScale::kMax));
    EXPECT_NEAR(rows[0].heads[static_cast<size_t>(g)].mean, expected,
                1e-5 * (1 + largest) * expected);
  }
}

TEST(MeasureDof, SameForASeedWhateverTheNumberOfThreads) {
  const Teacher teacher("gpt2");
  const DofOptions options = {.samples = 40, .draws = 3};
  const int before = thread_count();
  omp_set_num_threads(1);
  const DofTable one = measure_dof(teacher.model, teacher.sequences, options, 9);
  omp_set_num_threads(3);
  // The teacher's own sums may be split differently: the comparison is of the stage, not of it.
  const DofTable three = measure_dof(teacher.model, teacher.sequences, options, 9);
  const DofTable again = measure_dof(teacher.model, teacher.sequences, options, 9);
  omp_set_num_threads(before);
  EXPECT_EQ(three.spectra, again.spectra);
  EXPECT_EQ(three.spectra, one.spectra);
  EXPECT_NE(measure_dof(teacher.model, teacher.sequences, options, 10).spectra, one.spectra);
}

TEST(MeasureDof, TellsWhatItMeasured) {
  const Teacher teacher("llama");
  const DofOptions options = {.samples = 20,
                              .draws = 2,
                              .gram = GramScale::kMax,
                              .lambda = 0x1p-20,
                              .features = FeatureMap::kUntied};
  std::map<std::string, int64_t> done;
  const DofTable table = measure_dof(
      teacher.model, teacher.sequences, options, 3,
      [&](const ProgressUpdate& update) { done[std::string(update.unit)] = update.done; });
  EXPECT_EQ(table.model, identity_of(teacher.model.config()));
  EXPECT_EQ(table.gram, GramScale::kMax);
  EXPECT_EQ(table.smallest_lambda, 0x1p-20);
  EXPECT_EQ(table.samples, 20);
  EXPECT_EQ(table.draws, 2);
  EXPECT_EQ(table.sequences, static_cast<int64_t>(teacher.sequences.size()));
  EXPECT_EQ(table.length, static_cast<int64_t>(teacher.sequences[0].size()));
  EXPECT_EQ(table.seed, 3u);
  ASSERT_LT(teacher.model.config().kv_heads, teacher.model.config().heads);
  EXPECT_EQ(table.heads_in_layer(), teacher.model.config().kv_heads);
  const int64_t heads = table.model.layers * table.heads_in_layer() * 2;
  EXPECT_EQ(static_cast<int64_t>(table.spectra.size()), heads);
  EXPECT_EQ(done["sequences"], table.sequences);
  EXPECT_EQ(done["heads"], heads);
}

TEST(MeasureDof, RefusesBadInput) {
  const Teacher teacher("gpt2");
  const auto measure = [&](const DofOptions& options) {
    return [&teacher, options] { measure_dof(teacher.model, teacher.sequences, options); };
  };
  DofOptions options;
  options.samples = 1 << 20;
  test::expect_error(measure(options), {"1048576 samples", "queries and keys", "fewer samples"});
  options.samples = 10;
  for (const double lambda : {0.0, -0.5, std::nan("")}) {
    options.lambda = lambda;
    test::expect_error(measure(options), {"λ", "positive"});
  }
  const std::vector<std::vector<int64_t>> longer(
      1, std::vector<int64_t>(static_cast<size_t>(teacher.model.config().context + 1), 1));
  test::expect_error([&] { measure_dof(teacher.model, longer, {}); }, {"context"});
}

}  // namespace
}  // namespace dofla
