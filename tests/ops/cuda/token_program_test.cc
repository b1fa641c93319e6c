// Steps of a token that a GPU runs in one launch: dense layers against plain double loops,
// attention against what the CPU puts together.
#include "tests/ops/cuda/program_on_gpu.h"

namespace dofla {
namespace {

using test::Around;
using test::kEps;
using test::normal_tensor;

constexpr double kFactor = test::kProgramFactor;

constexpr int64_t kMostNormInputs = 2048;  // of a layer with a norm

class CudaTokenProgram : public test::ProgramOnGpu {
 protected:
  // One token after another through the layer, read from its own result or from a row.
  void check_layer(int64_t inputs, int64_t outputs, const Around& around, bool from_row) {
    const std::string what = fmt::format("{} to {}", inputs, outputs);
    const Tensor x = table(inputs), factor = table(outputs), residual = table(outputs);
    const Dense layer = layer_of(kTokens, inputs, outputs, false, around);
    Dense on_gpu = there(layer);
    kept(on_gpu.linear.weight), kept(on_gpu.linear.bias);
    kept(on_gpu.norm.weight), kept(on_gpu.norm.bias);
    auto program = token_program(gpu);
    if (around.factor) on_gpu.factor = enter(*program, factor);
    if (around.residual) on_gpu.residual = enter(*program, residual);
    const Tensor row = enter(*program, x);
    const Tensor y = from_row ? leave(*program, program->dense(row, on_gpu))
                              : program->dense(row, on_gpu, DType::kF32);
    ASSERT_TRUE(program->finish()) << what;
    for (const int64_t id : {0, 1, 4, 3, 3}) {
      program->run(id, 0);
      Dense of_token = layer;
      if (around.factor) of_token.factor = factor.slice(id, id + 1);
      if (around.residual) of_token.residual = residual.slice(id, id + 1);
      expect_dense(x.slice(id, id + 1), of_token, y, what, test::kProgramRow + kFactor,
                   from_row ? kFactor : test::kProgramRow);
    }
    const Tensor first = here(y);
    program->run(3, 0);
    EXPECT_TRUE(test::same_bits(here(y), first)) << what;
  }
};

TEST_F(CudaTokenProgram, DenseLayers) {
  const std::pair<int64_t, int64_t> sizes[] = {{64, 48},   {8, 4},     {40, 20},   {256, 132},
                                               {520, 16},  {768, 600}, {1000, 36}, {2048, 24},
                                               {3072, 48}, {6400, 12}};
  for (const auto& [inputs, outputs] : sizes)
    for (const Around& around : test::kArounds)
      if (around.norm == Around::kNone || inputs <= kMostNormInputs)
        check_layer(inputs, outputs, around, false);
}

TEST_F(CudaTokenProgram, DenseLayersInARow) {
  const std::pair<int64_t, int64_t> sizes[] = {{64, 48}, {768, 600}, {3072, 256}};
  for (const auto& [inputs, outputs] : sizes)
    for (const Around& around : test::kArounds)
      if (around.norm == Around::kNone || inputs <= kMostNormInputs)
        check_layer(inputs, outputs, around, true);
}

// Blocks go on with the next tile, and the last tile is not whole.
TEST_F(CudaTokenProgram, DenseLayersOfManyOutputs) {
  check_layer(72, 20007, {.norm = Around::kLayer, .bias = true}, false);
  check_layer(2048, 3001, {.bias = true, .activation = Activation::kSilu}, false);
}

TEST_F(CudaTokenProgram, PlacesHeadsAndAttends) {
  struct Case {
    int64_t size, pairs;
    bool norm, untied;
  };
  constexpr int64_t kHeads = 4, kKeyHeads = 2;
  for (const auto& [size, pairs, norm, untied] :
       {Case{64, 0, false, false}, Case{32, 16, false, false}, Case{64, 32, true, false},
        Case{20, 4, false, false}, Case{100, 0, true, false}, Case{128, 16, true, false},
        Case{64, 32, false, true}, Case{64, 0, true, true}, Case{20, 4, false, true},
        Case{128, 16, true, true}}) {
    const std::string what =
        fmt::format("heads of {}, {} pairs{}", size, pairs, untied ? ", untied" : "");
    const Features features =
        untied ? untied_features({3, 300}, kHeads, size) : tied_features({3, 70, 1, 300}, size);
    const Features on_gpu = features.to(gpu);
    const int64_t columns = (kHeads + 2 * kKeyHeads) * size;
    const Tensor rows = table(columns);
    Placement placement = {.epsilon = 1e-5};
    if (norm) {
      placement.q_norm = normal_tensor({size}, random);
      placement.k_norm = normal_tensor({size}, random);
    }
    if (pairs > 0) placement.frequencies = normal_tensor({pairs}, random);
    const auto heads = [&](const Tensor& of, int64_t first, int64_t count) {
      return view_heads(of, {first * size, size}, 1, count, size);
    };

    auto program = token_program(gpu);
    const Tensor entered = enter(*program, rows);
    Placement placement_on_gpu = placement;
    for (Tensor* x :
         {&placement_on_gpu.q_norm, &placement_on_gpu.k_norm, &placement_on_gpu.frequencies})
      *x = kept(x->to(gpu));
    const Tensor q = heads(entered, 0, kHeads), k = heads(entered, kHeads, kKeyHeads);
    if (norm || pairs > 0) program->place_heads(placement_on_gpu);
    LinearAttentionState state = new_linear_attention_state(1, on_gpu);
    const Tensor out =
        leave(*program, program->linear_attention_step(
                            q, k, heads(entered, kHeads + kKeyHeads, kKeyHeads), on_gpu, state));
    ASSERT_TRUE(program->finish()) << what;

    LinearAttentionState expected_state = new_linear_attention_state(1, features);
    for (int64_t t = 0; t < kTokens; ++t) {
      const int64_t position = 7 * t;
      Tensor where({1}, DType::kI64);
      where.data<int64_t>()[0] = position;
      const Tensor row = rows.slice(t, t + 1).to(DType::kF32);
      Tensor q_here = contiguous_heads(heads(row, 0, kHeads));
      Tensor k_here = contiguous_heads(heads(row, kHeads, kKeyHeads));
      const Tensor v_here = contiguous_heads(heads(row, kHeads + kKeyHeads, kKeyHeads));
      if (norm || pairs > 0) place_heads(placement, where, q_here, k_here);
      const Tensor expected =
          linear_attention_step(q_here, k_here, v_here, features, expected_state)
              .reshape({1, kHeads * size});
      program->run(t, position);
      // An error in q and k is multiplied by |z||x| in an exponent.
      expect_close(out, expected, 64 * kEps * static_cast<double>(size) * 4 + kFactor, what);
    }
    for (const auto& [found, wanted] :
         {std::pair{&state.a, &expected_state.a}, std::pair{&state.b, &expected_state.b},
          std::pair{&state.log_max, &expected_state.log_max}})
      expect_close(*found, *wanted, 64 * kEps * static_cast<double>(size) * 4, what + ", state");
  }
}

// What the kernel cannot do is said at the end, and never run.
TEST_F(CudaTokenProgram, SaysWhatDoesNotFit) {
  const auto fits = [&](int64_t inputs, int64_t outputs, bool input_major, DType type) {
    auto program = token_program(gpu);
    Dense layer = layer_of(1, inputs, outputs, input_major, {});
    layer.linear.weight = layer.linear.weight.to(type);
    program->dense(enter(*program, table(inputs)), there(layer), DType::kF32);
    return program->finish();
  };
  EXPECT_TRUE(fits(64, 8, false, DType::kBF16));
  EXPECT_FALSE(fits(64, 8, true, DType::kBF16));
  EXPECT_FALSE(fits(64, 8, false, DType::kF32));
  EXPECT_FALSE(fits(36, 8, false, DType::kBF16));
  EXPECT_FALSE(fits(20000, 8, false, DType::kBF16));
}

}  // namespace
}  // namespace dofla
