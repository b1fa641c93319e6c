// The operations around attention: the GPU against the CPU, in float32.
#include <limits>

#include "dofla/ops/cross_entropy.h"
#include "dofla/ops/divergence.h"
#include "dofla/ops/embedding.h"
#include "dofla/ops/heads.h"
#include "dofla/ops/matmul.h"
#include "dofla/ops/norm.h"
#include "tests/support/gpu.h"
#include "tests/support/random_values.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

using test::normal_tensor;

constexpr double kEps = std::numeric_limits<float>::epsilon();

class CudaDense : public test::OnGpu {
 protected:
  Tensor normal(const Shape& shape) { return normal_tensor(shape, random); }
  static Tensor ids(int64_t count, int64_t below) {
    Tensor out({count}, DType::kI64);
    for (int64_t i = 0; i < count; ++i) out.data<int64_t>()[i] = i * 7919 % below;
    return out;
  }

  Random random{5};
};

TEST_F(CudaDense, Norms) {
  for (const int64_t width : {1, 20, 64, 768, 1000}) {
    const Tensor x = normal({33, width}), weight = normal({width}), bias = normal({width});
    const Tensor grad = normal({33, width});
    const double tolerance = 8 * kEps * std::sqrt(static_cast<double>(width));
    expect_close(layer_norm(x.to(gpu), weight.to(gpu), bias.to(gpu), 1e-5),
                 layer_norm(x, weight, bias, 1e-5), tolerance, "layer norm");
    expect_close(rms_norm(x.to(gpu), weight.to(gpu), 1e-5), rms_norm(x, weight, 1e-5), tolerance,
                 "RMS norm");
    Tensor w = Tensor::zeros({width}), b = Tensor::zeros({width});
    Tensor gw = Tensor::zeros({width}, DType::kF32, gpu), gb = gw.clone();
    const Tensor cpu = layer_norm_backward(x, weight, 1e-5, grad, &w, &b);
    const Tensor there =
        layer_norm_backward(x.to(gpu), weight.to(gpu), 1e-5, grad.to(gpu), &gw, &gb);
    // With a single column the gradient is nothing but rounding.
    if (width > 1) expect_close(there, cpu, 4 * tolerance, "layer norm, grad_x");
    if (width > 1) expect_close(gw, w, 4 * tolerance + 33 * kEps, "layer norm, grad_weight");
    expect_close(gb, b, 33 * kEps, "layer norm, grad_bias");
    Tensor r = Tensor::zeros({width}), gr = Tensor::zeros({width}, DType::kF32, gpu);
    const Tensor cpu_rms = rms_norm_backward(x, weight, 1e-5, grad, &r);
    const Tensor gpu_rms = rms_norm_backward(x.to(gpu), weight.to(gpu), 1e-5, grad.to(gpu), &gr);
    if (width > 1) expect_close(gpu_rms, cpu_rms, 4 * tolerance, "RMS norm, grad_x");
    expect_close(gr, r, 4 * tolerance + 33 * kEps, "RMS norm, grad_weight");
  }
}

TEST_F(CudaDense, HeadsMoveAndRotate) {
  const Tensor first = ids(2, 41);
  for (const int64_t size : {8, 5}) {  // whole packs, and not
    const HeadColumns columns = {size, 3 * size};
    const Tensor rows = normal({2 * 9, 12 * size}), on_gpu = rows.to(gpu);
    const auto heads_of = [&](const Tensor& of) { return view_heads(of, columns, 2, 4, size); };
    const Tensor heads = contiguous_heads(heads_of(rows));
    EXPECT_TRUE(test::same_bits(here(contiguous_heads(heads_of(on_gpu))), heads));
    Tensor back = rows.clone(), gpu_back = rows.to(gpu);
    Tensor to = heads_of(back), gpu_to = heads_of(gpu_back);
    const Tensor other = normal({2, 4, 9, size});
    copy_heads(other, to);
    copy_heads(other.to(gpu), gpu_to);
    EXPECT_TRUE(test::same_bits(here(gpu_back), back));
    Tensor cache = normal({2, 4, 60, size}), gpu_cache = cache.to(gpu);
    append_heads(heads, first, cache);
    append_heads(heads_of(on_gpu), first.to(gpu), gpu_cache);
    EXPECT_TRUE(test::same_bits(here(gpu_cache), cache));
  }
  Tensor frequencies({3});
  for (int64_t i = 0; i < 3; ++i)
    frequencies.data<float>()[i] = std::pow(0.1f, static_cast<float>(i));
  for (const bool back : {false, true}) {
    Tensor x = normal({2, 3, 70, 8}), there = x.to(gpu);
    rotate(x, frequencies, first, back);
    rotate(there, frequencies.to(gpu), first.to(gpu), back);
    // Positions reach 75, and the angle's rounding is that of the product.
    expect_close(there, x, 64 * kEps, "rotate");
  }
}

// Rows of the table that nobody asked for, and some that several did, in more columns than a block
// has threads; added to what is there.
TEST_F(CudaDense, Embedding) {
  for (const int64_t width : {1, 24, 300}) {
    const Tensor table = normal({50, width}), where = ids(70, 41), grad = normal({70, width});
    EXPECT_TRUE(test::same_bits(here(embed(table.to(gpu), where)), embed(table, where)));
    Tensor cpu = normal({50, width}), there = cpu.to(gpu);
    embed_backward(where, grad, cpu);
    embed_backward(where, grad.to(gpu), there);
    EXPECT_TRUE(test::same_bits(here(there), cpu));
  }
}

TEST_F(CudaDense, EmbeddingOfSequences) {
  for (const int64_t width : {1, 24, 300}) {  // in packs of 16 bytes, and not
    const Tensor tokens = normal({50, width}), positions = normal({40, width});
    const Tensor where = ids(70, 41).reshape({2, 35});
    Tensor first({2}, DType::kI64);
    first.data<int64_t>()[0] = 5, first.data<int64_t>()[1] = 0;
    EXPECT_TRUE(
        test::same_bits(here(embed_sequences(tokens.to(gpu), positions.to(gpu), where, first)),
                        embed_sequences(tokens, positions, where, first)));
    const Tensor bf16 = tokens.to(DType::kBF16), there = positions.to(DType::kBF16);
    const Tensor sum = embed_sequences(bf16, there, where, first).to(DType::kBF16);
    EXPECT_TRUE(test::same_bits(
        embed_sequences(bf16.to(gpu), there.to(gpu), where, first).to(Device()), sum));
    first.data<int64_t>()[0] = 6;
    EXPECT_THROW(embed_sequences(tokens.to(gpu), positions.to(gpu), where, first),
                 std::invalid_argument);
  }
}

TEST_F(CudaDense, ProductsInBothLayouts) {
  for (const int64_t rows : {1, 3, 130})
    for (const bool input_major : {false, true}) {
      const int64_t inputs = 72, outputs = 136;
      Linear linear = {
          .weight = normal(input_major ? Shape{inputs, outputs} : Shape{outputs, inputs}),
          .input_major = input_major,
          .bias = normal({outputs})};
      const Linear there = {linear.weight.to(gpu), input_major, linear.bias.to(gpu)};
      const Tensor x = normal({rows, inputs}), grad = normal({rows, outputs});
      const double tolerance = 4 * kEps * std::sqrt(136.0 + static_cast<double>(rows));
      expect_close(matmul(x.to(gpu), there), matmul(x, linear), tolerance, "matmul");
      expect_close(matmul_backward(grad.to(gpu), there), matmul_backward(grad, linear), tolerance,
                   "grad_x");
      Linear sums = {Tensor::zeros(linear.weight.shape()), input_major, Tensor::zeros({outputs})};
      Linear gpu_sums = {sums.weight.to(gpu).clone(), input_major, sums.bias.to(gpu).clone()};
      add_weight_gradient(x, grad, sums);
      add_weight_gradient(x.to(gpu), grad.to(gpu), gpu_sums);
      expect_close(gpu_sums.weight, sums.weight, tolerance, "weight gradient");
      expect_close(gpu_sums.bias, sums.bias, tolerance, "bias gradient");
    }
}

TEST_F(CudaDense, CrossEntropy) {
  for (const int64_t rows : {1, 70, 4200}) {  // more than one panel
    const Linear head = {normal({301, 40}), false, {}};
    const Linear there = {head.weight.to(gpu), false, {}};
    const Tensor x = normal({rows, 40}), targets = ids(rows, 301);
    Tensor weight = normal({rows});
    weight.data<float>()[rows / 2] = 0;
    // Sums over inputs, then over the vocabulary; gradients have both once more.
    const double loss_tolerance = test::float32_tolerance(301, 2, 1);
    const double tolerance = test::float32_tolerance(301, 4, 1);
    expect_close(cross_entropy(x.to(gpu), there, targets), cross_entropy(x, head, targets),
                 loss_tolerance, "loss");
    Linear sums = {Tensor::zeros({301, 40}), false, {}};
    Linear gpu_sums = {Tensor::zeros({301, 40}, DType::kF32, gpu), false, {}};
    const auto cpu = cross_entropy_backward(x, head, targets, weight, &sums);
    const auto result = cross_entropy_backward(x.to(gpu), there, targets, weight, &gpu_sums);
    expect_close(result.loss, cpu.loss, loss_tolerance, "loss of the backward");
    expect_close(result.x, cpu.x, tolerance, "grad_x");
    expect_close(gpu_sums.weight, sums.weight, tolerance * std::sqrt(static_cast<double>(rows)),
                 "head gradient");
  }
}

TEST_F(CudaDense, Imitation) {
  for (const int64_t vocabulary : {304, 301})
    for (const int64_t rows : {1, 70, 4200}) {  // more than one panel
      const Linear head = {normal({vocabulary, 40}), false, {}},
                   teacher = {normal({vocabulary, 24}), false, {}};
      const Tensor x = normal({rows, 40}), said = normal({rows, 24});
      Tensor weight = normal({rows});
      if (rows > 1) weight.data<float>()[rows / 2] = 0;
      Linear sums = {Tensor::zeros({vocabulary, 40}), false, {}};
      Linear gpu_sums = {Tensor::zeros({vocabulary, 40}, DType::kF32, gpu), false, {}};
      const auto cpu = imitation_backward(x, head, said, teacher, weight, &sums);
      const auto result =
          imitation_backward(x.to(gpu), {head.weight.to(gpu), false, {}}, said.to(gpu),
                             {teacher.weight.to(gpu), false, {}}, weight, &gpu_sums);
      // As above, with two heads.
      const double loss_tolerance = test::float32_tolerance(vocabulary, 4, 1);
      const double tolerance = test::float32_tolerance(vocabulary, 8, 1);
      expect_close(result.loss, cpu.loss, loss_tolerance, "loss");
      expect_close(result.x, cpu.x, tolerance, "grad_x");
      expect_close(gpu_sums.weight, sums.weight, tolerance * std::sqrt(static_cast<double>(rows)),
                   "head gradient");
    }
}

TEST_F(CudaDense, TokenStatistics) {
  for (const int64_t vocabulary : {3, 301, 50'257}) {
    const int64_t rows = 40;
    const Tensor teacher = normal({rows, vocabulary}), targets = ids(rows, vocabulary);
    Tensor student = normal({rows, vocabulary});
    for (int64_t i = 0; i < student.count(); ++i)  // near enough to share some likeliest tokens
      student.data<float>()[i] = teacher.data<float>()[i] + 0.2f * student.data<float>()[i];
    const auto cpu = token_statistics(teacher, student, targets);
    const auto there = token_statistics(teacher.to(gpu), student.to(gpu), targets);
    ASSERT_EQ(there.size(), cpu.size());
    const double tolerance = 64 * kEps * std::sqrt(static_cast<double>(vocabulary)) *
                             std::log(static_cast<double>(vocabulary));
    for (size_t r = 0; r < cpu.size(); ++r) {
      EXPECT_NEAR(there[r].teacher_loss, cpu[r].teacher_loss, tolerance);
      EXPECT_NEAR(there[r].student_loss, cpu[r].student_loss, tolerance);
      EXPECT_NEAR(there[r].kl, cpu[r].kl, tolerance);
      EXPECT_NEAR(there[r].teacher_entropy, cpu[r].teacher_entropy, tolerance);
      EXPECT_NEAR(there[r].student_entropy, cpu[r].student_entropy, tolerance);
      EXPECT_NEAR(there[r].teacher_top_p, cpu[r].teacher_top_p, tolerance);
      EXPECT_NEAR(there[r].student_top_p, cpu[r].student_top_p, tolerance);
      EXPECT_EQ(there[r].teacher_top, cpu[r].teacher_top);
      EXPECT_EQ(there[r].student_top, cpu[r].student_top);
      EXPECT_EQ(there[r].shared_top, cpu[r].shared_top);
      EXPECT_EQ(there[r].target, cpu[r].target);
    }
    for (const auto& same : token_statistics(teacher.to(gpu), teacher.to(gpu), targets))
      EXPECT_EQ(same.kl, 0);
  }
}

// Of equal logits the first counts, as on the CPU.
TEST_F(CudaDense, TokenStatisticsOfEquallyLikelyTokens) {
  const Tensor zeros = Tensor::zeros({3, 1200}), targets = ids(3, 1200);
  for (const auto& row : token_statistics(zeros.to(gpu), zeros.to(gpu), targets)) {
    EXPECT_EQ(row.teacher_top, 0);
    EXPECT_EQ(row.shared_top, 5);
  }
}

// Sums in double: what is left is the order of adding up.
TEST_F(CudaDense, HeadErrors) {
  for (const int64_t tokens : {1, 511, 3001})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Shape shape = {2, tokens, 3, 24};
      const Tensor teacher = normal(shape).to(dtype), student = normal(shape).to(dtype);
      const auto cpu = head_errors(teacher.to(DType::kF32), student.to(DType::kF32));
      const auto there = head_errors(teacher.to(gpu), student.to(gpu));
      ASSERT_EQ(there.size(), 3u);
      const double rounding =
          std::numeric_limits<double>::epsilon() * static_cast<double>(teacher.count());
      for (size_t h = 0; h < 3; ++h) {
        EXPECT_NEAR(there[h].signal, cpu[h].signal, rounding * cpu[h].signal);
        EXPECT_NEAR(there[h].error, cpu[h].error, rounding * cpu[h].error);
      }
    }
}

}  // namespace
}  // namespace dofla
