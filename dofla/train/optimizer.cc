#include "dofla/train/optimizer.h"

#include <cmath>
#include <limits>

#include "dofla/core/error.h"
#include "dofla/core/random.h"
#include "dofla/distill/training_file.h"

namespace dofla {
namespace {

// Then the norm of gradients is added up in the same order by any number of ranks.
static_assert(Shards::kBlock == kSquaresBlock);

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

std::vector<Tensor> without_names(const NamedTensors& named) {
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

std::vector<int64_t> counts_of(const NamedTensors& named) {
  std::vector<int64_t> counts;
  for (const auto& [name, tensor] : named) counts.push_back(tensor.count());
  return counts;
}

}  // namespace

DType dtype_of(MomentType type) {
  return type == MomentType::kBFloat16 ? DType::kBF16 : DType::kF32;
}

Optimizer::Optimizer(NamedTensors parameters, const OptimizerOptions& options, const Group& group)
    : parameters_(std::move(parameters)),
      tensors_(without_names(parameters_)),
      options_(options),
      shards_(group, counts_of(parameters_)) {
  require(options_.clip >= 0, "optimizer: expected a norm to clip at from 0 up, found {}",
          options_.clip);
  // Throws on a mapped weight now, not in the middle of a step.
  for (Tensor& tensor : tensors_) tensor.mutable_raw();
  for (const Shard& shard : shards_.own()) {
    moments_.push_back(new_adam_moments(shard.of(tensors_), dtype_of(options_.moments)));
    moments_.back().seed = mixed(options_.seed + mixed(shard.tensor));
    moments_.back().first = shard.begin;
  }
}

AdamOptions Optimizer::options_for(size_t parameter, double learning_rate) const {
  const auto& [name, tensor] = parameters_[parameter];
  return {.learning_rate = learning_rate * (is_feature(name) ? options_.feature_rate : 1),
          .beta1 = options_.beta1,
          .beta2 = options_.beta2,
          .epsilon = options_.epsilon,
          .weight_decay = decayed(name, tensor) ? options_.weight_decay : 0};
}

void Optimizer::expect(const NamedTensors& gradients, std::span<const int64_t> layers) {
  expected_ = without_names(gradients);
  sum_ = std::make_unique<ShardedSum>(shards_, expected_, layers);
}

void Optimizer::finished(int64_t layer) {
  sum_->finished(layer);
}

bool Optimizer::step(const NamedTensors& gradients, double learning_rate) {
  require(gradients.size() == parameters_.size(), "optimizer: {} gradients for {} parameters",
          gradients.size(), parameters_.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    require(gradients[i].first == parameters_[i].first, "optimizer: the gradient of {} for {}",
            gradients[i].first, parameters_[i].first);
    require_shape(gradients[i].second, tensors_[i].shape(), "optimizer: " + gradients[i].first);
  }
  std::vector<Tensor> tensors = without_names(gradients);
  // Ranks exchange what is in the memory of the CPU.
  if (!shards_.group().alone())
    for (Tensor& tensor : tensors) tensor = tensor.to(Device());
  if (!std::isfinite(sum_and_clip(tensors))) {
    ++skipped_;
    return false;
  }
  for (size_t i = 0; i < moments_.size(); ++i) {
    const Shard& shard = shards_.own()[i];
    Tensor parameter = shard.of(tensors_);
    adam_step(shard.of(tensors).to(parameter.device()), options_for(shard.tensor, learning_rate),
              moments_[i], parameter);
  }
  ++steps_;
  hand_out(tensors);
  return true;
}

// Returns their norm over all ranks. Afterwards only the share of this one has a meaning.
double Optimizer::sum_and_clip(std::span<Tensor> gradients) {
  const double most = options_.clip == 0 ? std::numeric_limits<double>::infinity() : options_.clip;
  if (shards_.group().alone()) return clip_by_global_norm(most, gradients);
  if (sum_) {
    require(expected_.front().raw() == gradients.front().raw(),
            "optimizer: a step on other gradients than were expected");
    sum_->finish();
    sum_.reset();
  } else {
    shards_.sum(gradients);
  }
  std::vector<Tensor> own;
  std::vector<double> squares;
  for (const Shard& shard : shards_.own()) {
    own.push_back(shard.of(gradients));
    const std::vector<double> more = block_squares(own.back());
    squares.insert(squares.end(), more.begin(), more.end());
  }
  const double norm = std::sqrt(total_squares(shards_.gather_blocks(squares)));
  clip_norm(norm, most, own);
  return norm;
}

// Every rank has the steps that the others made. What a GPU has goes through `staging`, tensors
// like the parameters on the CPU.
void Optimizer::hand_out(std::span<Tensor> staging) {
  if (shards_.group().alone() || tensors_.empty()) return;
  if (!tensors_.front().device().is_cuda()) return shards_.gather(tensors_);
  for (const Shard& shard : shards_.own()) shard.of(staging).assign(shard.of(tensors_));
  shards_.gather(staging);
  for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i].assign(staging[i]);
}

void Optimizer::save(NamedTensors& tensors) const {
  const DType dtype = dtype_of(options_.moments);
  std::vector<Tensor> means, squares;
  for (const AdamMoments& moments : moments_) {
    means.push_back(moments.mean);
    squares.push_back(moments.square);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, parameter] = parameters_[i];
    const Tensor mean = shards_.whole(i, means, dtype);
    const Tensor square = shards_.whole(i, squares, dtype);
    if (!shards_.group().is_first()) continue;
    tensors.emplace_back(name, parameter.to(Device()));
    append_moments(moments_of(name),
                   {.mean = mean.reshape(parameter.shape()),
                    .square = square.reshape(parameter.shape()),
                    .steps = steps_},
                   tensors);
  }
  tensors.emplace_back(kSkipped, integers({skipped_}));
}

void Optimizer::restore(const Safetensors& file) {
  std::vector<AdamMoments> saved;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i].first;
    tensors_[i].assign(find_tensor(file, name, tensors_[i].shape()));
    saved.push_back(
        find_moments(file, moments_of(name), tensors_[i].shape(), dtype_of(options_.moments)));
    steps_ = saved.back().steps;
  }
  for (size_t i = 0; i < moments_.size(); ++i) {
    const Shard& shard = shards_.own()[i];
    const AdamMoments& from = saved[shard.tensor];
    moments_[i].mean.assign(shard.of(from.mean));
    moments_[i].square.assign(shard.of(from.square));
    moments_[i].steps = from.steps;
  }
  const Tensor skipped = find_tensor(file, kSkipped, {1}, DType::kI64);
  skipped_ = skipped.data<int64_t>()[0];
}

Optimizer::Copy Optimizer::copy() const {
  Copy copy;
  for (const Shard& shard : shards_.own()) {
    const Tensor part = shard.of(tensors_);
    copy.push_back(part.device().is_cuda() ? part.to(Device()) : part.clone());
  }
  return copy;
}

void Optimizer::take(const Copy& copy) {
  for (size_t i = 0; i < copy.size(); ++i) shards_.own()[i].of(tensors_).assign(copy[i]);
  std::vector<Tensor> staging;
  if (!shards_.group().alone())
    for (const Tensor& tensor : tensors_) staging.push_back(tensor.to(Device()));
  hand_out(staging);
}

void Optimizer::save_copy(const std::string& prefix, const Copy& copy, NamedTensors& to) const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor whole = shards_.whole(i, copy, DType::kF32);
    if (whole.defined())
      to.emplace_back(prefix + parameters_[i].first, whole.reshape(tensors_[i].shape()));
  }
}

Optimizer::Copy Optimizer::restore_copy(const std::string& prefix, const Safetensors& file) const {
  Copy copy;
  for (const Shard& shard : shards_.own()) {
    const auto& [name, parameter] = parameters_[shard.tensor];
    copy.push_back(shard.of(find_tensor(file, prefix + name, parameter.shape())).clone());
  }
  return copy;
}

}  // namespace dofla
