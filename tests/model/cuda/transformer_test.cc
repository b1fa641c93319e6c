// Whole models: the GPU, which computes in bf16, against the CPU.
#include "dofla/model/transformer.h"

#include <cmath>

#include "dofla/linear/linear_model.h"
#include "dofla/ops/heads.h"
#include "tests/support/model_on_gpu.h"

namespace dofla {
namespace {

class CudaModel : public test::ModelOnGpu {
 protected:
  // About ten values of a layer are rounded to bf16, each by up to 2^-9 and to either side; a norm
  // or a softmax may stretch an error by a small factor.
  static double tolerance(const ModelConfig& config) {
    return 8 * 0x1p-9 * std::sqrt(10 * static_cast<double>(config.layers));
  }
};

TEST_F(CudaModel, GivesTheLogitsOfEveryFixture) {
  for (const std::string& name : test::fixture_models()) {
    const Checkpoint checkpoint(test::fixtures() / name);
    const Transformer cpu(checkpoint), there(checkpoint, gpu);
    const Tensor ids = some_ids(cpu.config(), 2, 30);
    const Shape rows = {60, cpu.config().width};
    expect_close(there.logits(there.forward(ids).reshape(rows)),
                 cpu.logits(cpu.forward(ids).reshape(rows)), tolerance(cpu.config()), name);
  }
}

// Queries, keys and values where each family's projections leave them.
TEST_F(CudaModel, ShowsTheHeadsOfEveryFixture) {
  for (const std::string& name : test::fixture_models()) {
    const Checkpoint checkpoint(test::fixtures() / name);
    const Transformer cpu(checkpoint), there(checkpoint, gpu);
    const Tensor ids = some_ids(cpu.config(), 2, 30);
    std::vector<Tensor> expected, found;
    const auto into = [](std::vector<Tensor>& list) {
      return [&list](int64_t, const Tensor& q, const Tensor& k, const Tensor& v) {
        for (const Tensor* heads : {&q, &k, &v}) list.push_back(contiguous_heads(*heads));
      };
    };
    cpu.forward(ids, {.observer = into(expected), .heads_only = true});
    there.forward(ids, {.observer = into(found), .heads_only = true});
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i)
      expect_close(found[i], expected[i], tolerance(cpu.config()),
                   fmt::format("{}: layer {}, {}", name, i / 3, "qkv"[i % 3]));
  }
}

// Keys and values reach the cache from there, which grows in between.
TEST_F(CudaModel, ContinuesEveryFixtureFromItsCache) {
  for (const std::string& name : test::fixture_models()) {
    const Transformer model(Checkpoint(test::fixtures() / name), gpu);
    const int64_t width = model.config().width;
    const Tensor ids = some_ids(model.config(), 2, 100);
    const Tensor whole = here(model.forward(ids));
    DecodeState state = model.new_state();
    for (const auto& [begin, end] : {std::pair{0, 30}, {30, 31}, {31, 100}}) {
      Tensor part({2, end - begin}, DType::kI64), expected({2, end - begin, width});
      for (int64_t b = 0; b < 2; ++b) {
        std::copy_n(ids.data<int64_t>() + b * 100 + begin, end - begin,
                    part.data<int64_t>() + b * (end - begin));
        std::copy_n(whole.data<float>() + (b * 100 + begin) * width, (end - begin) * width,
                    expected.data<float>() + b * (end - begin) * width);
      }
      expect_close(model.forward(part, {.state = &state, .observer = {}}), expected,
                   tolerance(model.config()), fmt::format("{}: {} to {}", name, begin, end));
    }
  }
}

TEST_F(CudaModel, DecodesAsItPrefills) {
  for (const bool linear : {false, true}) {
    const Checkpoint checkpoint(wiki_mini);
    const Transformer teacher(checkpoint);
    const Tensor ids = some_ids(teacher.config(), 1, 24);
    const Transformer model =
        linear ? make_linear_model(checkpoint, pair_features(teacher, ids, 16), gpu)
               : Transformer(checkpoint, gpu);
    const Tensor whole = model.forward(ids).reshape({24, model.config().width});
    DecodeState state = model.new_state();
    Tensor last;
    for (int64_t t = 0; t < 24; ++t) {
      Tensor id({1, 1}, DType::kI64);
      id.data<int64_t>()[0] = ids.data<int64_t>()[t];
      last = model.forward(id, {.state = &state, .observer = {}});
    }
    expect_close(last.reshape({1, model.config().width}), whole.slice(23, 24),
                 tolerance(model.config()), linear ? "linear" : "softmax");
  }
}

}  // namespace
}  // namespace dofla
