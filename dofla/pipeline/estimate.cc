#include "dofla/pipeline/estimate.h"

#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/model/operations.h"

namespace dofla {
namespace {

// Shares of the product peak, of GPT-2 small on one H200 (bench/results/h200.md). Larger models do
// as well or better.
constexpr double kForwardShare = 0.68;
constexpr double kFeatureLossShare = 0.08;  // softmax
constexpr double kDirectShare = 0.51;       // gradients of features, not of weights
constexpr double kBackwardShare = 0.41;     // gradients of everything
constexpr double kAdamRate = 105e9;         // parameters a second, bound by memory

// Tokens whose gradients a GPU computes at once: part_tokens_for().
constexpr double kPartTokens = 16384;

class Estimate {
 public:
  Estimate(const ModelConfig& config, const EstimateOptions& options)
      : config_(config),
        machine_(options.machine),
        length_(options.length),
        tokens_(static_cast<double>(options.batch * options.length) /
                static_cast<double>(options.machine.gpus)),
        moments_(2.0 * static_cast<double>(size_in_bytes(dtype_of(options.moments)))),
        shape_(attention_shape(config, options.length, options.features)) {}

  StageEstimate layerwise() const {
    const double forward =
        dense_operations_to_heads(config_, length_) + softmax_attention_operations(shape_);
    // The model as it came and in the coordinates of its features.
    return stage("distill",
                 seconds(forward, kForwardShare) +
                     seconds(feature_loss_operations(shape_), kFeatureLossShare),
                 0, 2 * weights(2) + tokens_ * bytes_of_a_block());
  }

  StageEstimate kl() const {
    const double student = 2 * student_forward() + linear_attention_operations(shape_);
    return stage("distill --loss kl", teacher_seconds() + seconds(student, kDirectShare), 0,
                 2 * weights(2) + tape_bytes());
  }

  StageEstimate finetune_all() const {
    const double student = 3 * student_forward();
    return stage("finetune --teacher", teacher_seconds() + seconds(student, kBackwardShare),
                 adam_seconds(matrix_weights(config_)),
                 finetuned_bytes(matrix_weights(config_)) + tape_bytes());
  }

  StageEstimate finetune_attention() const {
    const double trained = attention_weights(config_);
    const double student = 2 * student_forward() + 2 * static_cast<double>(length_) * trained;
    return stage("finetune --teacher --train attention",
                 teacher_seconds() + seconds(student, kBackwardShare), adam_seconds(trained),
                 finetuned_bytes(trained) + tape_bytes());
  }

  StageEstimate finetune_features() const {
    const double student = 2 * student_forward() + linear_attention_operations(shape_);
    return stage("finetune --teacher --train features",
                 teacher_seconds() + seconds(student, kDirectShare), 0,
                 finetuned_bytes(0) + tape_bytes());
  }

 private:
  // Of a window's products.
  double seconds(double operations, double share) const {
    return operations / (share * machine_.products);
  }

  double student_forward() const {
    return dense_operations(config_, length_) + head_operations(config_, length_) +
           linear_attention_operations(shape_);
  }

  double teacher_seconds() const {
    return seconds(dense_operations(config_, length_) + head_operations(config_, length_) +
                       softmax_attention_operations(shape_),
                   kForwardShare);
  }

  // Every GPU holds the moments of a share of the parameters, and steps that share.
  double share_of(double trained) const { return trained / static_cast<double>(machine_.gpus); }
  double adam_seconds(double trained) const { return share_of(trained) / kAdamRate; }

  double weights(double bytes_each) const { return bytes_each * matrix_weights(config_); }

  // Of weights that learn F32, BF16 copies, gradients and a share of both moments, of the others
  // the copies; and the teacher.
  double finetuned_bytes(double trained) const {
    return (4 + 2 + 4) * trained + moments_ * share_of(trained) +
           2 * (matrix_weights(config_) - trained) + weights(2);
  }

  // Numbers of a token that a block works on at once, in BF16: its input, heads, and the inner
  // width of the MLP.
  double bytes_of_a_block() const {
    const int64_t heads = (2 * config_.heads + 2 * config_.kv_heads) * config_.head_size;
    const int64_t inner = (config_.gated_mlp ? 2 : 1) * config_.mlp_width;
    return 2.0 * static_cast<double>(2 * config_.width + heads + inner);
  }

  // What a backward takes over from the forward of the tokens that it has at once (BlockTape).
  double tape_bytes() const {
    return std::min(tokens_, kPartTokens) * static_cast<double>(config_.layers) *
           bytes_of_a_block();
  }

  StageEstimate stage(std::string name, double seconds_of_a_window, double seconds_of_a_step,
                      double bytes) const {
    const double windows = tokens_ / static_cast<double>(length_);
    const double step = windows * seconds_of_a_window + seconds_of_a_step;
    return {std::move(name), tokens_ * static_cast<double>(machine_.gpus) / step, bytes};
  }

  const ModelConfig& config_;
  Machine machine_;
  int64_t length_;
  double tokens_;   // of a step, a GPU
  double moments_;  // bytes of both, a parameter
  AttentionShape shape_;
};

}  // namespace

std::vector<StageEstimate> estimate_stages(const ModelConfig& config,
                                           const EstimateOptions& options) {
  const Machine& machine = options.machine;
  require(options.length > 0 && options.features > 0 && machine.gpus > 0 && machine.products > 0 &&
              machine.memory > 0,
          "an estimate takes positive numbers");
  require(options.batch >= machine.gpus, "a batch of {} windows cannot be shared by {} GPUs",
          options.batch, machine.gpus);
  const Estimate estimate(config, options);
  return {estimate.layerwise(), estimate.kl(), estimate.finetune_all(),
          estimate.finetune_attention(), estimate.finetune_features()};
}

}  // namespace dofla
