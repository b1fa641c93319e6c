// Gradients of whole models on a GPU: in float32 against PyTorch's for every parameter of every
// fixture, and against the CPU's for linear attention; with BF16 copies of the weights against
// those in float32.
#include <algorithm>
#include <cmath>

#include "dofla/distill/feature_init.h"
#include "dofla/linear/linear_model.h"
#include "dofla/model/next_token_gradient.h"
#include "dofla/plan/allocate.h"
#include "tests/support/fixtures.h"
#include "tests/support/gpu.h"
#include "tests/support/random_values.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

struct Differentiated {
  double loss = 0;
  NamedTensors gradients;  // on the CPU
};

class CudaGradients : public test::OnGpu {
 protected:
  static Differentiated differentiate(const Transformer& model, const Tensor& ids,
                                      bool recompute = false) {
    Gradients gradients = new_gradients(model, {.weights = true, .features = true});
    Differentiated result = {next_token_gradient(model, ids, recompute, gradients),
                             parameters(gradients)};
    for (auto& [name, tensor] : result.gradients) tensor = here(tensor);
    return result;
  }
  static Transformer linear_model(const Checkpoint& checkpoint, const Device& device) {
    const DimensionPlan plan = fixed_plan(identity_of(checkpoint.config()), 12);
    return make_linear_model(checkpoint, init_features(plan, {}), device, DType::kF32);
  }
  // Products and sums are in float32 as on the CPU, and feed into each other as often: four times a
  // layer on the way there and twice that on the way back, besides the head.
  static double tolerance(const ModelConfig& config, const Tensor& ids, const Tensor& reference) {
    const int64_t longest =
        std::max({config.width, config.mlp_width, config.vocabulary, ids.count()});
    return test::float32_tolerance(longest, 12 * config.layers + 2, test::largest(reference));
  }
};

TEST_F(CudaGradients, EqualTransformers) {
  for (const std::string& fixture : test::fixture_models()) {
    const Checkpoint checkpoint(test::fixtures() / fixture);
    const Safetensors expected(test::fixtures() / fixture / "expected.safetensors");
    const Tensor ids = expected.tensor("input_ids"), loss = expected.tensor("loss");
    const Transformer model(checkpoint, gpu, DType::kF32);
    const Differentiated found = differentiate(model, ids);
    EXPECT_NEAR(found.loss, loss.data<float>()[0],
                tolerance(model.config(), ids, expected.tensor("logits")))
        << fixture;
    for (const auto& [name, gradient] : found.gradients) {
      // Transformers renames GPT-NeoX's head while it loads.
      const std::string known = name == "embed_out.weight" ? "lm_head.weight" : name;
      const Tensor reference = expected.tensor("grad." + known);
      test::expect_near(gradient, reference, tolerance(model.config(), ids, reference),
                        fixture + ": " + name);
    }
    const auto names = expected.names();
    EXPECT_EQ(std::ssize(found.gradients),
              std::ranges::count_if(
                  names, [](const std::string& name) { return name.starts_with("grad."); }));
  }
}

TEST_F(CudaGradients, OfLinearModelsAreThoseOfTheCpu) {
  for (const std::string& fixture : test::fixture_models()) {
    const Checkpoint checkpoint(test::fixtures() / fixture);
    const Tensor ids =
        Safetensors(test::fixtures() / fixture / "expected.safetensors").tensor("input_ids");
    const Transformer cpu = linear_model(checkpoint, Device()),
                      there = linear_model(checkpoint, gpu);
    const Differentiated expected = differentiate(cpu, ids), found = differentiate(there, ids);
    ASSERT_EQ(found.gradients.size(), expected.gradients.size());
    for (size_t i = 0; i < found.gradients.size(); ++i) {
      const auto& [name, reference] = expected.gradients[i];
      EXPECT_EQ(found.gradients[i].first, name);
      test::expect_near(found.gradients[i].second, reference,
                        tolerance(cpu.config(), ids, reference), fixture + ": " + name);
    }
  }
}

// Every number between two operations is rounded to BF16, by at most 2⁻⁹ of it, and so are the
// weights: twelve times a layer on the way there, twice that on the way back, seven matrices, and
// at either end. At worst the errors add up.
TEST_F(CudaGradients, WithBf16CopiesAreThoseOfFloat32) {
  const auto relative_error = [](const NamedTensors& found, const NamedTensors& expected) {
    double off = 0, all = 0;
    for (size_t i = 0; i < found.size(); ++i)
      for (int64_t j = 0; j < found[i].second.count(); ++j) {
        const double e = expected[i].second.data<float>()[j];
        off += std::pow(found[i].second.data<float>()[j] - e, 2);
        all += e * e;
      }
    return std::sqrt(off / all);
  };
  for (const std::string& fixture : test::fixture_models()) {
    const Checkpoint checkpoint(test::fixtures() / fixture);
    const Tensor ids =
        Safetensors(test::fixtures() / fixture / "expected.safetensors").tensor("input_ids");
    Transformer softmax(checkpoint, gpu, DType::kF32), linear = linear_model(checkpoint, gpu);
    for (Transformer* model : {&softmax, &linear}) {
      const Differentiated expected = differentiate(*model, ids);
      model->make_trainable();
      const Differentiated found = differentiate(*model, ids);
      const double tolerance = static_cast<double>(43 * model->config().layers + 2) * 0x1p-9;
      EXPECT_LT(relative_error(found.gradients, expected.gradients), tolerance) << fixture;
      EXPECT_NEAR(found.loss, expected.loss, tolerance * expected.loss) << fixture;
    }
  }
}

TEST_F(CudaGradients, AreTheSameBitsEveryTimeAndRecomputed) {
  for (const std::string& fixture : test::fixture_models()) {
    const Checkpoint checkpoint(test::fixtures() / fixture);
    const Tensor ids =
        Safetensors(test::fixtures() / fixture / "expected.safetensors").tensor("input_ids");
    const Transformer softmax(checkpoint, gpu, DType::kF32), linear = linear_model(checkpoint, gpu);
    for (const Transformer* model : {&softmax, &linear}) {
      const Differentiated once = differentiate(*model, ids);
      for (const bool recompute : {false, true}) {
        const Differentiated again = differentiate(*model, ids, recompute);
        for (size_t i = 0; i < once.gradients.size(); ++i)
          EXPECT_TRUE(test::same_bits(again.gradients[i].second, once.gradients[i].second))
              << fixture << ": " << once.gradients[i].first;
      }
    }
  }
}

}  // namespace
}  // namespace dofla
