// Fine-tuning on a GPU: with products in float32 as on the CPU, up to rounding, and with BF16
// copies of the weights as it is done.
#include "dofla/train/finetune.h"

#include <cmath>
#include <set>

#include "dofla/train/candidate_gradient.h"
#include "dofla/train/optimizer.h"
#include "tests/support/adam_step_of_one.h"
#include "tests/support/expect_error.h"
#include "tests/support/finetune_case.h"
#include "tests/support/gpu.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

class CudaFinetuning : public test::OnGpu, protected test::FinetuneCase {
 protected:
  // What the gradients of two devices differ by, relative to their norm: sums that feed into each
  // other four times a layer on the way there and twice that on the way back.
  double relative() const {
    const ModelConfig& config = checkpoint.config();
    return test::float32_tolerance(std::max(config.vocabulary, config.mlp_width),
                                   12 * config.layers, 1);
  }
  // The norm of the gradients of all questions, before any step.
  double gradient_norm() const {
    Transformer model = linear_model();
    model.make_trainable();
    Gradients gradients = new_gradients(model, kEverything);
    std::vector<const EncodedQuestion*> all;
    for (const EncodedQuestion& question : questions) all.push_back(&question);
    candidate_gradient(model, all, 1 / static_cast<double>(all.size()), false, gradients);
    std::vector<Tensor> tensors;
    for (const auto& [name, tensor] : parameters(gradients)) tensors.push_back(tensor);
    return test::norm_of(tensors);
  }
};

// What is frozen keeps its parameters, though the GPU has only rounded copies of them.
TEST_F(CudaFinetuning, APartLearnsAndTheRestStays) {
  const NamedTensors start = copy_of(linear_model(gpu));
  for (const int64_t lora : {0, 2}) {
    FinetuneOptions options = settings();
    options.train = TrainedPart::kAttention;
    options.lora = lora;
    options.keep_best = false;
    Transformer model = linear_model(gpu);
    const FinetuneResult result = finetune(model, examples, options, judge());
    EXPECT_EQ(result.skipped(), 0);
    const NamedTensors end = copy_of(model);
    ASSERT_EQ(end.size(), start.size());
    for (size_t i = 0; i < end.size(); ++i) {
      const bool learns = end[i].first.starts_with("linear_attention.") ||
                          end[i].first.find("self_attn") != std::string::npos;
      EXPECT_EQ(!test::same_bits(end[i].second, start[i].second), learns) << end[i].first;
    }
  }
}

// A step of Adam moves a parameter by about the rate, to the side that its gradient says. Where the
// devices disagree on the side, the gradient is smaller than its own error; all errors together
// have the norm `relative` · |g|, so that a step moves the loss apart by at most
// 2 · rate · √N · relative · |g|. Twice that leaves room for gradients that grow.
TEST_F(CudaFinetuning, FollowsTheCpu) {
  Transformer cpu = linear_model(), there = linear_model(gpu);
  there.make_trainable(DType::kF32);
  const FinetuneResult expected = finetune(cpu, examples, settings(), judge());
  const FinetuneResult found = finetune(there, examples, settings(), judge());
  int64_t count = 0;
  for (const auto& [name, tensor] : parameters(cpu, kEverything)) count += tensor.count();
  const double step = 4 * settings().learning_rate * std::sqrt(static_cast<double>(count)) *
                      relative() * gradient_norm();
  ASSERT_EQ(found.loss.size(), expected.loss.size());
  for (size_t i = 0; i < found.loss.size(); ++i)
    EXPECT_NEAR(found.loss[i], expected.loss[i],
                relative() * expected.loss[i] + static_cast<double>(i) * step)
        << "step " << i;
  EXPECT_EQ(found.skipped(), 0);
  EXPECT_EQ(found.run["device"], "cuda");
  EXPECT_EQ(found.run["weights"], expected.run["weights"]);  // both began with the same ones
}

TEST_F(CudaFinetuning, LearnsABatchByHeart) {
  const std::vector<EncodedQuestion> few = some_questions(6);
  Transformer softmax = load_model(checkpoint, gpu, DType::kF32), linear = linear_model(gpu);
  for (Transformer* model : {&softmax, &linear}) {
    FinetuneOptions options;
    options.epochs = 30;
    options.batch = 6;
    options.learning_rate = 5e-3;
    options.keep_best = false;
    options.recompute = model == &linear;
    const FinetuneResult result =
        finetune(*model, examples_of(few), options, [](const Transformer&) { return Judgement(); });
    EXPECT_EQ(evaluate_task(*model, few).acc.mean, 1);
    EXPECT_GT(result.loss.front(), 1);
    EXPECT_LT(result.loss.back(), 0.01);
    EXPECT_EQ(result.skipped(), 0);
  }
}

TEST_F(CudaFinetuning, ResumedAtAnyCheckpointEndsInTheSameBits) {
  FinetuneOptions options = settings();
  options.checkpoint_every = 1;
  options.checkpoint = scratch.path() / "run.training";
  Transformer whole = linear_model(gpu);
  std::set<fs::path> copies;  // of the file as it was after every step
  const auto keep = [&](const ProgressUpdate& update) {
    const fs::path to = scratch.path() / fmt::format("{} step {}", update.stage, update.done);
    fs::copy_file(options.checkpoint, to);
    copies.insert(to);
  };
  const FinetuneResult expected = finetune(whole, examples, options, judge(), keep);
  ASSERT_EQ(copies.size(), 6u);
  options.resume = true;
  for (const fs::path& copy : copies) {
    options.checkpoint = copy;
    Transformer resumed = linear_model(gpu);
    const FinetuneResult found = finetune(resumed, examples, options, judge());
    EXPECT_TRUE(same_bits(copy_of(resumed), copy_of(whole))) << copy;
    for (size_t i = 0; i < resumed.weights().parameters.size(); ++i)
      EXPECT_TRUE(test::same_bits(here(resumed.weights().parameters[i].second),
                                  here(whole.weights().parameters[i].second)))
          << copy << ": " << whole.weights().parameters[i].first;
    EXPECT_EQ(found.loss, expected.loss) << copy;
    EXPECT_EQ(found.kept, expected.kept) << copy;
  }
}

TEST_F(CudaFinetuning, GoesOnWhereItBeganOnly) {
  FinetuneOptions options = settings();
  options.checkpoint = scratch.path() / "run.training";
  const auto begin_and_resume = [&](const Device& first, const Device& second) {
    options.resume = false;
    Transformer begun = linear_model(first), resumed = linear_model(second);
    finetune(begun, examples, options, judge());
    options.resume = true;
    finetune(resumed, examples, options, judge());
  };
  test::expect_error([&] { begin_and_resume(gpu, Device()); },
                     {"run.training", "began on cuda, this is cpu", "resume it on cuda"});
  test::expect_error([&] { begin_and_resume(Device(), gpu); },
                     {"run.training", "began on cpu, this is cuda", "resume it on cpu"});
}

TEST_F(CudaFinetuning, WritesTheModelThatItTrained) {
  const fs::path folder = scratch.path() / "tuned";
  fs::create_directory(folder);
  Transformer model = load_model(checkpoint, gpu, DType::kF32);
  const FinetuneResult result = finetune(model, examples, settings(), judge());
  write_trained_model(folder, checkpoint, model, result.run);
  EXPECT_TRUE(same_bits(copy_of(load_model(Checkpoint(folder))), copy_of(model)));
  EXPECT_FALSE(same_bits(copy_of(load_model(checkpoint)), copy_of(model)));
}

TEST_F(CudaFinetuning, StepsThatAreNotFiniteAreLeftOut) {
  Tensor p = Tensor::zeros({4}, DType::kF32, gpu);
  Optimizer optimizer({{"p", p}}, {});
  Tensor bad = Tensor::zeros({4});
  bad.data<float>()[2] = std::nanf("");
  EXPECT_FALSE(optimizer.step({{"p", bad.to(gpu)}}, 0.1));
  EXPECT_EQ(optimizer.skipped(), 1);
  EXPECT_EQ(test::largest(here(p)), 0);
}

// What is computed with are the parameters, rounded; norms are the very same.
TEST_F(CudaFinetuning, CopiesFollowTheParameters) {
  Transformer model = linear_model(gpu);
  finetune(model, examples, settings(), judge());
  const NamedTensors& copies = model.weights().parameters;
  ASSERT_EQ(copies.size(), model.parameters().size());
  int64_t rounded = 0;
  for (size_t i = 0; i < copies.size(); ++i) {
    const Tensor parameter = here(model.parameters()[i].second);
    EXPECT_EQ(copies[i].first, model.parameters()[i].first);
    rounded += copies[i].second.dtype() == DType::kBF16;
    EXPECT_TRUE(test::same_bits(here(copies[i].second),
                                parameter.to(copies[i].second.dtype()).to(DType::kF32)))
        << copies[i].first;
  }
  EXPECT_EQ(model.weights().final_norm.weight.dtype(), DType::kF32);
  EXPECT_GT(rounded, 7 * model.config().layers);
}

TEST_F(CudaFinetuning, WeightsInBf16AreRefused) {
  Transformer model = load_model(checkpoint, gpu);
  EXPECT_THROW(finetune(model, examples, settings(), judge()), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
