#include "dofla/train/optimizer.h"

#include <algorithm>
#include <limits>

#include "dofla/core/error.h"
#include "dofla/core/random.h"
#include "dofla/distill/training_file.h"
#include "dofla/ops/rounding.h"

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

Optimizer::Optimizer(NamedTensors parameters, const OptimizerOptions& options, const Group& group,
                     std::vector<Tensor> copies)
    : parameters_(std::move(parameters)),
      tensors_(without_names(parameters_)),
      copies_(std::move(copies)),
      options_(options),
      shards_(group, counts_of(parameters_),
              tensors_.empty() ? Device() : tensors_.front().device()) {
  require(options_.clip >= 0, "optimizer: expected a norm to clip at from 0 up, found {}",
          options_.clip);
  require(copies_.empty() || copies_.size() == tensors_.size(),
          "optimizer: {} copies of {} parameters", copies_.size(), tensors_.size());
  copies_.resize(tensors_.size());
  // Throws on a mapped weight now, not in the middle of a step.
  for (Tensor& tensor : tensors_) tensor.mutable_raw();
  for (const Shard& shard : shards_.own()) {
    AdamParameter& one = held_.emplace_back();
    one.value = shard.of(tensors_);
    one.moments = new_adam_moments(one.value, dtype_of(options_.moments));
    one.moments.seed = mixed(options_.seed + mixed(shard.tensor));
    one.moments.first = shard.begin;
    if (copies_[shard.tensor].defined()) one.copy = shard.of(copies_);
  }
}

void Optimizer::set_rates(double learning_rate) {
  for (size_t i = 0; i < held_.size(); ++i) {
    const auto& [name, tensor] = parameters_[shards_.own()[i].tensor];
    held_[i].options = {
        .learning_rate = learning_rate * (is_feature(name) ? options_.feature_rate : 1),
        .beta1 = options_.beta1,
        .beta2 = options_.beta2,
        .epsilon = options_.epsilon,
        .weight_decay = decayed(name, tensor) ? options_.weight_decay : 0};
  }
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
  const std::vector<Tensor> tensors = without_names(gradients);
  const Tensor norm = norm_of_sums(tensors);
  for (size_t i = 0; i < held_.size(); ++i) held_[i].gradient = shards_.own()[i].of(tensors);
  set_rates(learning_rate);
  const double most = options_.clip == 0 ? std::numeric_limits<double>::infinity() : options_.clip;
  const bool taken = adam_step(held_, norm, most);
  for (AdamParameter& one : held_) one.gradient = Tensor();  // its memory is the caller's
  if (!taken) {
    ++skipped_;
    return false;
  }
  ++steps_;
  hand_out();
  return true;
}

// Of gradients over all ranks, where the parameters are. Afterwards only the share of this rank in
// `gradients` has a meaning, their sums.
Tensor Optimizer::norm_of_sums(std::span<const Tensor> gradients) {
  if (shards_.group().alone()) return gradient_norm(gradients);
  if (sum_) {
    require(expected_.front().raw() == gradients.front().raw(),
            "optimizer: a step on other gradients than were expected");
    sum_->finish();
    sum_.reset();
  } else {
    shards_.sum(gradients);
  }
  std::vector<Tensor> own;
  for (const Shard& shard : shards_.own()) own.push_back(shard.of(gradients));
  const Tensor squares = block_squares(own).to(Device());
  std::vector<double> all;
  const double* first = squares.data<double>();
  for (const std::vector<double>& blocks : shards_.gather_blocks({first, first + squares.count()}))
    all.insert(all.end(), blocks.begin(), blocks.end());
  Tensor sums({std::ssize(all)}, DType::kF64);
  std::ranges::copy(all, sums.data<double>());
  return norm_of_blocks(sums.to(tensors_.front().device()), gradients);
}

// Every rank has the steps that the others made. A step rounds what this rank holds; the rest is
// rounded when it has come.
void Optimizer::hand_out() {
  shards_.gather(tensors_);
  for (int rank = 0; rank < shards_.group().size(); ++rank) {
    if (rank == shards_.group().rank()) continue;
    for (const Shard& shard : shards_.of(rank)) {
      if (!copies_[shard.tensor].defined()) continue;
      Tensor copy = shard.of(copies_);
      round_into(shard.of(tensors_), copy);
    }
  }
}

void Optimizer::round_copies() {
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (copies_[i].defined()) round_into(tensors_[i], copies_[i]);
}

void Optimizer::save(NamedTensors& tensors) const {
  const DType dtype = dtype_of(options_.moments);
  std::vector<Tensor> means, squares;
  for (const AdamParameter& one : held_) {
    means.push_back(one.moments.mean);
    squares.push_back(one.moments.square);
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
  for (size_t i = 0; i < held_.size(); ++i) {
    const Shard& shard = shards_.own()[i];
    const AdamMoments& from = saved[shard.tensor];
    AdamMoments& moments = held_[i].moments;
    moments.mean.assign(shard.of(from.mean));
    moments.square.assign(shard.of(from.square));
    moments.steps = from.steps;
  }
  round_copies();
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
  hand_out();
  round_copies();
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
