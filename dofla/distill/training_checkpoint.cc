// How the training of features is kept on disk: the features, the optimizer's moments and the loss
// so far.
#include "dofla/core/error.h"
#include "dofla/distill/train.h"
#include "dofla/distill/training_file.h"

namespace dofla {
namespace {

std::string moment_name(size_t layer, std::string_view what) {
  return fmt::format("moments.{}.{}", layer, what);
}

}  // namespace

void FeatureTrainer::save(const fs::path& path, const Json& run) const {
  NamedTensors tensors = to_tensors(features_.to(Device()));
  for (size_t i = 0; i < moments_.size(); ++i) {
    if (features_.layers[i].empty()) continue;
    for (const auto& [name, part] : feature_parts(moments_[i]))
      if (part->mean.defined()) append_moments(moment_name(i, name), *part, tensors);
  }
  const int64_t width = static_cast<int64_t>(curves());
  Tensor loss({steps_done(), width}, DType::kF64);
  for (int64_t s = 0; s < steps_done(); ++s)
    std::copy_n(history_.loss[static_cast<size_t>(s)].data(), width,
                loss.data<double>() + s * width);
  tensors.emplace_back("history.loss", loss);
  std::vector<int64_t> skipped;
  for (const SkippedStep& one : history_.skipped)
    skipped.insert(skipped.end(), {one.step, one.layer, one.head});
  tensors.emplace_back("history.skipped", integers(skipped));
  write_training_file(path, std::move(tensors), run);
}

void FeatureTrainer::restore(const fs::path& path, const Json& run) {
  const Safetensors file = open_training_file(path, run);
  for (auto& [name, tensor] : to_tensors(features_))
    tensor.assign(find_tensor(file, name, tensor.shape()));
  for (size_t i = 0; i < moments_.size(); ++i) {
    if (features_.layers[i].empty()) continue;
    for (const auto& [name, part] : feature_parts(moments_[i]))
      if (part->mean.defined()) read_moments(file, moment_name(i, name), *part);
  }
  const Tensor loss = file.tensor("history.loss");
  const int64_t width = static_cast<int64_t>(curves());
  if (loss.rank() != 2 || loss.size(1) != width || loss.size(0) > options_.steps)
    fail("{}: history.loss: expected [steps, {}], found {}", path.string(), width,
         to_string(loss.shape()));
  history_ = {};
  for (int64_t s = 0; s < loss.size(0); ++s) {
    const double* row = loss.data<double>() + s * width;
    history_.loss.emplace_back(row, row + width);
  }
  const Tensor skipped = file.tensor("history.skipped");
  for (int64_t i = 0; i + 3 <= skipped.count(); i += 3) {
    const int64_t* one = skipped.data<int64_t>() + i;
    history_.skipped.push_back({one[0], one[1], one[2]});
  }
}

}  // namespace dofla
