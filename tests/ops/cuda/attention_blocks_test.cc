// Attention that is a part of a larger one: keys that come a block at a time, states that go on,
// and gradients from the tape of the larger one. The GPU against the CPU.
#include "dofla/ops/softmax_attention.h"
#include "tests/ops/cuda/attention_on_gpu.h"
#include "tests/reference/compare.h"

namespace dofla {
namespace {

using reference::AttentionCase;
using test::kPrecisions;

class CudaAttentionBlocks : public test::AttentionOnGpu {
 protected:
  // Rows in packs and not; one block and several, of one tile and of more; several blocks of
  // features a head; tied, and untied in groups; and a long sequence that is cut into segments.
  static std::vector<AttentionCase> cases_in_blocks() {
    std::vector<AttentionCase> all;
    for (const int64_t block : {2, 16, 32, 64})
      for (const int64_t blocks : {1, 3, 7}) {
        all.push_back(reference::random_case({.batch = 2,
                                              .key_heads = 2,
                                              .tokens = blocks * block,
                                              .width = block == 2 ? 20 : 64,
                                              .counts = {16, 64, 140, 5},
                                              .block = block}));
        all.push_back(reference::random_case({.batch = 2,
                                              .tokens = blocks * block,
                                              .width = block == 64 ? 64 : 128,
                                              .counts = {33, 140},
                                              .group = 3,
                                              .block = block}));
      }
    for (const int64_t group : {0, 2})
      all.push_back(reference::random_case(
          {.tokens = 1040, .width = 64, .counts = {64}, .group = group, .block = 16}));
    return all;
  }

  // Outputs of any values and denominators several times as large as the attention's own.
  static AttentionTape larger(const AttentionTape& own, DType dtype) {
    Random random(5);
    AttentionTape tape = {test::normal_tensor(own.out.shape(), random).to(dtype).to(DType::kF32),
                          own.log_sum.clone()};
    for (int64_t i = 0; i < tape.log_sum.count(); ++i)
      tape.log_sum.data<float>()[i] += static_cast<float>(std::abs(random.normal()));
    return tape;
  }

  AttentionTape there(const AttentionTape& tape, DType dtype) const {
    return {AttentionOnGpu::there(tape.out, dtype), tape.log_sum.to(gpu)};
  }
  using AttentionOnGpu::there;
};

TEST_F(CudaAttentionBlocks, Linear) {
  for (const AttentionCase& c : cases_in_blocks())
    for (const test::Precision& precision : kPrecisions) expect_linear(c, precision);
}

// Chunks end between blocks, where the reference has the same numbers.
TEST_F(CudaAttentionBlocks, LinearKeepsBlocksBeforeAGiantKey) {
  AttentionCase c = reference::keys_that_grow();
  for (const int64_t block : {1, 2, 16, 32}) {
    c.block = block;
    const Features features = c.features().to(gpu);
    const Tensor out =
        linear_attention(c.q_tensor().to(gpu), c.k_tensor().to(gpu), c.v_tensor().to(gpu), features,
                         nullptr, kLinearAttentionChunk, nullptr, block);
    reference::expect_near(here(out), reference::linear_attention(c),
                           2 * reference::output_tolerance(c), fmt::format("block {}", block));
  }
}

// A tape with a state has the log sums over what the state holds as well.
TEST_F(CudaAttentionBlocks, LinearStateGoesOn) {
  for (const int64_t group : {0, 3})
    for (const auto& [dtype, relative] : kPrecisions) {
      const auto part = [&](uint64_t seed) {
        return reference::random_case({.batch = 2,
                                       .tokens = 48,
                                       .width = 64,
                                       .counts = {33, 140},
                                       .group = group,
                                       .block = 16,
                                       .seed = seed});
      };
      const Features features = part(1).features(), on_gpu = features.to(gpu);
      LinearAttentionState state = new_linear_attention_state(2, features);
      LinearAttentionState gpu_state = new_linear_attention_state(2, on_gpu);
      for (const uint64_t seed : {1, 2, 3}) {
        const Inputs x = rounded_inputs(part(seed), dtype);
        const std::string what = fmt::format("part {}, {}", seed, name(dtype));
        AttentionTape wanted, found;
        linear_attention(x.q, x.k, x.v, features, &state, 64, &wanted, 16);
        linear_attention(there(x.q, dtype), there(x.k, dtype), there(x.v, dtype), on_gpu,
                         &gpu_state, 64, &found, 16);
        expect_close(found.out, wanted.out, relative, what);
        expect_close(found.log_sum, wanted.log_sum, relative, what + ", log sums");
      }
    }
}

TEST_F(CudaAttentionBlocks, LinearPartOfALargerAttention) {
  for (const int64_t block : {1, 16})
    for (const int64_t group : {0, 2})
      for (const test::Precision& precision : kPrecisions) {
        const DType dtype = precision.dtype;
        const AttentionCase c = reference::random_case({.batch = 2,
                                                        .tokens = 144,
                                                        .width = 64,
                                                        .counts = {20, 140},
                                                        .group = group,
                                                        .block = block});
        const Inputs x = rounded_inputs(c, dtype);
        const Features features = c.features();
        AttentionTape own;
        linear_attention(x.q, x.k, x.v, features, nullptr, 64, &own, block);
        const AttentionTape tape = larger(own, dtype);
        const Tensor grad = random_gradient(c, dtype);
        expect_linear_gradients(
            c, precision,
            linear_attention_backward(there(x.q, dtype), there(x.k, dtype), there(x.v, dtype),
                                      features.to(gpu), there(grad, dtype), 64, there(tape, dtype),
                                      {}, block),
            linear_attention_backward(x.q, x.k, x.v, features, grad, 64, tape, {}, block), grad);
      }
}

// float32 rows of wide heads leave room for chunks of 32 tokens only.
TEST_F(CudaAttentionBlocks, RefusesABlockThatIsMoreThanAChunk) {
  const AttentionCase c = reference::random_case({.width = 128, .counts = {5}, .block = 64});
  const auto attend = [&](DType dtype) {
    linear_attention(there(c.q_tensor(), dtype), there(c.k_tensor(), dtype),
                     there(c.v_tensor(), dtype), c.features().to(gpu), nullptr, 64, nullptr, 64);
  };
  EXPECT_THROW(attend(DType::kF32), std::invalid_argument);
  EXPECT_NO_THROW(attend(DType::kBF16));
}

// Queries that are the last of more keys: from the forward's tape, and from that of a larger one.
// Many short sequences, one query, and several tiles.
TEST_F(CudaAttentionBlocks, SoftmaxOfTheLastQueries) {
  struct Sizes {
    int64_t batch, queries, keys, width;
  };
  for (const auto& [batch, queries, keys, width] : {Sizes{64, 16, 116, 64},
                                                    {3, 1, 70, 64},
                                                    {2, 16, 116, 64},
                                                    {2, 65, 200, 20},
                                                    {1, 130, 450, 128}})
    for (const auto& [dtype, relative] : kPrecisions) {
      Random random(4);
      const auto values = [&, type = dtype](int64_t heads, int64_t tokens, int64_t size) {
        return test::normal_tensor({batch, heads, tokens, size}, random).to(type).to(DType::kF32);
      };
      const Tensor q = values(4, queries, width), k = values(2, keys, width);
      const Tensor v = values(2, keys, width), grad = values(queries, 4, width);
      const std::string what =
          fmt::format("{} queries of {} keys of {}, {}", queries, keys, width, name(dtype));
      AttentionTape wanted, found;
      softmax_attention(q, k, v, keys, &wanted);
      softmax_attention(there(q, dtype), there(k, dtype), there(v, dtype), keys, &found);
      expect_close(found.out, wanted.out, relative, what);
      expect_close(found.log_sum, wanted.log_sum, relative, what + ", log sums");
      const double sums = relative * (1 + std::sqrt(static_cast<double>(keys)) / 8);
      const auto compare = [&](const AttentionTape& tape, const AttentionTape& gpu_tape) {
        const auto cpu = softmax_attention_backward(q, k, v, grad, tape);
        const auto result = softmax_attention_backward(
            there(q, dtype), there(k, dtype), there(v, dtype), there(grad, dtype), gpu_tape);
        expect_close(result.q, cpu.q, sums, what + ", grad_q");
        expect_close(result.k, cpu.k, sums, what + ", grad_k");
        expect_close(result.v, cpu.v, sums, what + ", grad_v");
      };
      compare({}, found);
      const AttentionTape more = larger(wanted, dtype);
      compare(more, there(more, dtype));
    }
}

}  // namespace
}  // namespace dofla
