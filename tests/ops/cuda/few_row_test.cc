// What decoding consists of on a GPU: dense layers of a few rows against plain double loops, the
// rest against the CPU.
#include "dofla/ops/dense.h"
#include "dofla/ops/embedding.h"
#include "tests/ops/cuda/dense_on_gpu.h"

namespace dofla {
namespace {

using test::normal_tensor;

using test::Around;
using test::kEps;
using test::kHalfStep;

class CudaDecode : public test::DenseOnGpu {};

TEST_F(CudaDecode, DenseLayersOfAFewRows) {
  const std::pair<int64_t, int64_t> sizes[] = {{64, 48},   {8, 1},     {40, 19},
                                               {256, 130}, {304, 7},   {520, 16},
                                               {1000, 33}, {2056, 24}, {3080, 24}};
  for (const auto& [inputs, outputs] : sizes)
    for (const int64_t rows : {1, 2, 3, 8})
      for (const Around& around : test::kArounds) {
        if (rows == 8 && inputs == 3080) continue;  // no room for them and a norm
        const Tensor x = narrow({rows, inputs});
        const Dense layer = layer_of(rows, inputs, outputs, false, around);
        for (const DType type : {DType::kBF16, DType::kF32})
          expect_dense(x, layer, dense(x.to(gpu), there(layer), type),
                       fmt::format("{} rows, {} to {}, {}", rows, inputs, outputs, name(type)));
      }
}

// More outputs than blocks take at a time: each goes on with the next ones.
TEST_F(CudaDecode, DenseLayersOfManyOutputs) {
  const std::pair<int64_t, int64_t> sizes[] = {{72, 20008}, {2056, 3000}};
  for (const auto& [inputs, outputs] : sizes)
    for (const int64_t rows : {1, 5}) {
      const Tensor x = narrow({rows, inputs});
      const Dense layer = layer_of(rows, inputs, outputs, false, {.bias = true, .residual = true});
      const Tensor y = dense(x.to(gpu), there(layer), DType::kF32);
      expect_dense(x, layer, y, fmt::format("{} rows, {} to {}", rows, inputs, outputs));
      EXPECT_TRUE(test::same_bits(here(dense(x.to(gpu), there(layer), DType::kF32)), here(y)));
    }
}

// Others are done by the operations for whole sequences, which round to bf16 in between: more rows,
// inputs that are not in packs, weights [K, N].
TEST_F(CudaDecode, OtherDenseLayers) {
  const int64_t sizes[][3] = {{20, 96, 40}, {3, 37, 19}, {1, 96, 40}};
  for (const auto& [rows, inputs, outputs] : sizes) {
    const Tensor x = narrow({rows, inputs});
    const Dense layer = layer_of(rows, inputs, outputs, true,
                                 {.norm = Around::kLayer,
                                  .bias = true,
                                  .activation = Activation::kGelu,
                                  .factor = true,
                                  .residual = true});
    Dense wide = layer;
    for (Tensor* tensor : {&wide.linear.bias, &wide.factor, &wide.residual})
      *tensor = tensor->to(DType::kF32);
    // Five results in a row are rounded by up to half a step of bf16, and factors reach 4.
    expect_close(dense(x.to(gpu), there(layer)), dense(x.to(DType::kF32), wide), 20 * kHalfStep,
                 "dense");
    // What a backward wants comes with the same result; no layer with a factor has a backward.
    Tensor product, expected;
    Dense fresh = there(layer), wide_fresh = wide;
    for (Dense* one : {&fresh, &wide_fresh}) one->factor = Tensor(), one->activation = std::nullopt;
    expect_close(dense(x.to(gpu), fresh, std::nullopt, &product),
                 dense(x.to(DType::kF32), wide_fresh, std::nullopt, &expected), 20 * kHalfStep,
                 "dense with a tape");
    expect_close(product, expected, 20 * kHalfStep, "product");
  }
}

// Logits of more rows come from a product whose sums are not rounded, with a bias in bf16 or none.
TEST_F(CudaDecode, LogitsOfManyRows) {
  for (const int64_t outputs : {40, 1003})
    for (const bool bias : {false, true}) {
      const Tensor x = narrow({70, 96});
      const Dense layer = layer_of(70, 96, outputs, false, {.bias = bias});
      expect_dense(x, layer, dense(x.to(gpu), there(layer), DType::kF32),
                   fmt::format("96 to {}", outputs));
    }
}

// Ids and positions in the GPU's memory, different for every sequence.
TEST_F(CudaDecode, EmbedsTokensAndPositions) {
  const Tensor tokens = normal_tensor({50, 300}, random),
               positions = normal_tensor({9, 300}, random);
  Tensor ids({3, 1}, DType::kI64), first({3}, DType::kI64);
  for (int64_t i = 0; i < 3; ++i)
    ids.data<int64_t>()[i] = 49 - 7 * i, first.data<int64_t>()[i] = 3 * i;
  const Tensor gpu_ids = ids.to(gpu), gpu_first = first.to(gpu);
  EXPECT_TRUE(
      test::same_bits(here(embed_sequences(tokens.to(gpu), positions.to(gpu), gpu_ids, gpu_first)),
                      embed_sequences(tokens, positions, ids, first)));
  EXPECT_TRUE(test::same_bits(here(embed_sequences(tokens.to(gpu), {}, gpu_ids, gpu_first)),
                              embed_sequences(tokens, {}, ids, first)));
}

// One token of every sequence takes another way than several.
TEST_F(CudaDecode, PlacesHeadsAndAttends) {
  constexpr int64_t kBatch = 3, kHeads = 4, kKeyHeads = 2;
  for (const bool untied : {false, true})
    for (const int64_t tokens : {1, 2})
      for (const int64_t size : {6, 64, 100})
        for (const bool with_norm : {false, true}) {
          const Features features = untied ? untied_features({70, 130}, kHeads, size)
                                           : tied_features({3, 70, 1, 130}, size);
          const int64_t columns = (kHeads + 2 * kKeyHeads) * size;
          const Tensor rows = normal_tensor({kBatch * tokens, columns}, random);
          Placement placement = {.epsilon = 1e-5, .frequencies = normal_tensor({size / 3}, random)};
          if (with_norm) {
            placement.q_norm = normal_tensor({size}, random);
            placement.k_norm = normal_tensor({size}, random);
          }
          Tensor first({kBatch}, DType::kI64);
          for (int64_t b = 0; b < kBatch; ++b) first.data<int64_t>()[b] = 5 * b;

          const auto run = [&](const Device& device) {
            Placement on = placement;
            for (Tensor* tensor : {&on.q_norm, &on.k_norm, &on.frequencies})
              *tensor = tensor->to(device);
            const Tensor own = rows.clone().to(device);
            const auto heads = [&](int64_t begin, int64_t count) {
              const Tensor view = view_heads(own, {begin * size, size}, kBatch, count, size);
              return device.is_cuda() ? view : contiguous_heads(view);
            };
            Tensor q = heads(0, kHeads), k = heads(kHeads, kKeyHeads);
            const Tensor v = heads(kHeads + kKeyHeads, kKeyHeads), before = own.clone();
            place_heads(on, first.to(device), q, k);
            if (with_norm) {
              EXPECT_TRUE(test::same_bits(here(own), here(before)));
            }
            const Features there = features.to(device);
            LinearAttentionState state = new_linear_attention_state(kBatch, there);
            const auto attend = [&] {
              return tokens == 1 ? linear_attention_step(q, k, v, there, state)
                                 : linear_attention(q, k, v, there, &state);
            };
            attend();
            device.synchronize();  // steps of one state do not overlap
            return std::tuple{contiguous_heads(q), contiguous_heads(k), attend()};
          };
          const auto [cpu_q, cpu_k, cpu_out] = run({});
          const auto [gpu_q, gpu_k, gpu_out] = run(gpu);
          // Angles reach 30, and their rounding is that of the product.
          const double tolerance = 64 * kEps * std::sqrt(static_cast<double>(size));
          expect_close(gpu_q, cpu_q, tolerance, "queries");
          expect_close(gpu_k, cpu_k, tolerance, "keys");
          // An error in q and k is multiplied by |z||x| in an exponent.
          expect_close(gpu_out, cpu_out, 64 * kEps * static_cast<double>(size) * 4, "attention");
        }
}

}  // namespace
}  // namespace dofla
