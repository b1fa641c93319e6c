#include "dofla/train/optimizer.h"

#include <cmath>
#include <limits>

#include "dofla/core/error.h"
#include "dofla/distill/training_file.h"

namespace dofla {
namespace {

bool is_feature(const std::string& name) {
  return name.starts_with("linear_attention.");
}

bool decayed(const std::string& name, const Tensor& parameter) {
  return parameter.rank() >= 2 && !is_feature(name);
}

std::string moments_of(const std::string& name) {
  return "moments." + name;
}

constexpr const char* kSkipped = "skipped_steps";

}  // namespace

Optimizer::Optimizer(NamedTensors parameters, const OptimizerOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  require(options_.clip >= 0, "optimizer: expected a norm to clip at from 0 up, found {}",
          options_.clip);
  for (auto& [name, parameter] : parameters_) {
    parameter.mutable_raw();  // throws on a mapped weight now, not in the middle of a step
    moments_.push_back(new_adam_moments(parameter));
  }
}

bool Optimizer::step(NamedTensors gradients, double learning_rate) {
  require(gradients.size() == parameters_.size(), "optimizer: {} gradients for {} parameters",
          gradients.size(), parameters_.size());
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < gradients.size(); ++i) {
    require(gradients[i].first == parameters_[i].first, "optimizer: the gradient of {} for {}",
            gradients[i].first, parameters_[i].first);
    tensors.push_back(gradients[i].second);
  }
  const double most = options_.clip == 0 ? std::numeric_limits<double>::infinity() : options_.clip;
  if (!std::isfinite(clip_by_global_norm(most, tensors))) {
    ++skipped_;
    return false;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto& [name, parameter] = parameters_[i];
    adam_step(tensors[i],
              {.learning_rate = learning_rate * (is_feature(name) ? options_.feature_rate : 1),
               .beta1 = options_.beta1,
               .beta2 = options_.beta2,
               .epsilon = options_.epsilon,
               .weight_decay = decayed(name, parameter) ? options_.weight_decay : 0},
              moments_[i], parameter);
  }
  return true;
}

void Optimizer::save(NamedTensors& tensors) const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, parameter] = parameters_[i];
    tensors.emplace_back(name, parameter.to(Device()));
    append_moments(moments_of(name), moments_[i], tensors);
  }
  tensors.emplace_back(kSkipped, integers({skipped_}));
}

void Optimizer::restore(const Safetensors& file) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto& [name, parameter] = parameters_[i];
    parameter.assign(find_tensor(file, name, parameter.shape()));
    read_moments(file, moments_of(name), moments_[i]);
  }
  const Tensor skipped = find_tensor(file, kSkipped, {1}, DType::kI64);
  skipped_ = skipped.data<int64_t>()[0];
}

}  // namespace dofla
