// How a training run is kept on disk: one safetensors file with the features, the optimizer's
// moments and the loss so far, and the description of the run in its metadata.
#include <cstring>

#include "dofla/core/error.h"
#include "dofla/distill/train.h"

namespace dofla {
namespace {

constexpr const char* kRunKey = "dofla.run";

std::string moment_name(size_t layer, std::string_view what) {
  return fmt::format("moments.{}.{}", layer, what);
}

Tensor integers(const std::vector<int64_t>& values) {
  Tensor tensor({static_cast<int64_t>(values.size())}, DType::kI64);
  std::memcpy(tensor.mutable_raw(), values.data(), values.size() * sizeof(int64_t));
  return tensor;
}

void save_moments(const std::string& at, const AdamMoments& moments, NamedTensors& tensors) {
  tensors.emplace_back(at + ".mean", moments.mean.to(Device()));
  tensors.emplace_back(at + ".square", moments.square.to(Device()));
  tensors.emplace_back(at + ".steps", integers({moments.steps}));
}

Tensor find(const Safetensors& file, const std::string& name, const Shape& expected) {
  const Tensor tensor = file.tensor(name);
  if (tensor.shape() != expected)
    fail("{}: {}: expected {}, found {}", file.path().string(), name, to_string(expected),
         to_string(tensor.shape()));
  return tensor;
}

void restore_moments(const Safetensors& file, const std::string& at, AdamMoments& moments) {
  const Device& device = moments.mean.device();
  moments.mean = find(file, at + ".mean", moments.mean.shape()).clone().to(device);
  moments.square = find(file, at + ".square", moments.square.shape()).clone().to(device);
  const Tensor steps = find(file, at + ".steps", {1});
  moments.steps = steps.data<int64_t>()[0];
}

// The first setting in which two runs differ.
void require_same(const Json& saved, const Json& asked, const std::string& where) {
  for (const auto& [key, value] : asked.items()) {
    const Json before = saved.contains(key) ? saved[key] : Json();
    if (before != value)
      fail(
          "{}: was started with {} {}, not {}; resume with the same options, or remove it to "
          "start over",
          where, key, before.dump(), value.dump());
  }
}

}  // namespace

Json read_run(const fs::path& checkpoint) {
  const Safetensors file(checkpoint);
  const auto found = file.metadata().find(kRunKey);
  if (found == file.metadata().end()) fail("{}: not a training checkpoint", checkpoint.string());
  return parse_json(found->second, checkpoint.string());
}

void FeatureTrainer::save(const fs::path& path, const Json& run) const {
  NamedTensors tensors = to_tensors(features_.to(Device()));
  for (size_t i = 0; i < moments_.size(); ++i) {
    save_moments(moment_name(i, "z"), moments_[i].z, tensors);
    save_moments(moment_name(i, "log_alpha"), moments_[i].log_alpha, tensors);
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
  write_safetensors(path, tensors, {{kRunKey, run.dump()}});
}

void FeatureTrainer::restore(const fs::path& path, const Json& run) {
  require_same(read_run(path), run, path.string());
  const Safetensors file(path);
  const Device device = features_.layers.front().z.device();
  features_ = from_tensors(features_.map, features_.counts(), features_.layers.front().z.size(1),
                           [&](const std::string& name, const Shape& shape) {
                             return find(file, name, shape).clone();
                           })
                  .to(device);
  for (size_t i = 0; i < moments_.size(); ++i) {
    restore_moments(file, moment_name(i, "z"), moments_[i].z);
    restore_moments(file, moment_name(i, "log_alpha"), moments_[i].log_alpha);
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
