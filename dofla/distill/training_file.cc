#include "dofla/distill/training_file.h"

#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/core/fingerprint.h"

namespace dofla {
namespace {

constexpr const char* kRunKey = "dofla.run";
constexpr const char* kChecksumKey = "dofla.checksum";

// Of everything that a training file says. `tensors` in the order of their names.
std::string checksum(const std::string& run, const NamedTensors& tensors) {
  Fingerprint print;
  const auto add_text = [&](std::string_view text) { print.add(std::as_bytes(std::span(text))); };
  add_text(run);
  for (const auto& [name, tensor] : tensors) {
    add_text(name);
    add_text(dofla::name(tensor.dtype()));
    for (const int64_t size : tensor.shape()) print.add(static_cast<uint64_t>(size));
    print.add({static_cast<const std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())});
  }
  return print.text();
}

void require_undamaged(const Safetensors& file) {
  NamedTensors tensors;
  for (const std::string& name : file.names()) tensors.emplace_back(name, file.tensor(name));
  const auto& metadata = file.metadata();
  const auto run = metadata.find(kRunKey), sum = metadata.find(kChecksumKey);
  if (run == metadata.end() || sum == metadata.end())
    fail("{}: not a training checkpoint of this version, or damaged; remove it to start over",
         file.path().string());
  const std::string found = checksum(run->second, tensors);
  if (found != sum->second)
    fail("{}: damaged: its contents have the checksum {}, when written {}; remove it to start over",
         file.path().string(), found, sum->second);
}

Json run_of(const Safetensors& file) {
  const auto found = file.metadata().find(kRunKey);
  if (found == file.metadata().end()) fail("{}: not a training checkpoint", file.path().string());
  return parse_json(found->second, file.path().string());
}

// Stops at the first setting in which two runs differ.
void require_same(const Json& saved, const Json& asked, const std::string& where) {
  for (const auto& [key, value] : asked.items()) {
    const Json before = saved.contains(key) ? saved[key] : Json();
    if (before == value) continue;
    if (key == "device" && before.is_string())
      fail(
          "{}: the run began on {}, this is {}; resume it on {}, or remove it to start "
          "over",
          where, before.get<std::string>(), value.get<std::string>(), before.get<std::string>());
    fail(
        "{}: was started with {} {}, not {}; resume with the same options, or remove it to "
        "start over",
        where, key, before.dump(), value.dump());
  }
}

}  // namespace

void write_training_file(const fs::path& path, NamedTensors tensors, const Json& run) {
  std::ranges::sort(tensors, {}, &NamedTensors::value_type::first);
  const std::string about = run.dump();
  const std::string sum = checksum(about, tensors);
  write_safetensors(path, std::move(tensors), {{kRunKey, about}, {kChecksumKey, sum}});
}

Safetensors open_training_file(const fs::path& path, const Json& run) {
  Safetensors file(path);
  require_undamaged(file);
  require_same(run_of(file), run, path.string());
  return file;
}

Json read_run(const fs::path& path) {
  return run_of(Safetensors(path));
}

Tensor find_tensor(const Safetensors& file, const std::string& name, const Shape& shape,
                   DType dtype) {
  Tensor tensor = file.tensor(name);
  if (tensor.shape() != shape || tensor.dtype() != dtype)
    fail("{}: {}: expected {} {}, found {} {}", file.path().string(), name, dofla::name(dtype),
         to_string(shape), dofla::name(tensor.dtype()), to_string(tensor.shape()));
  return tensor;
}

Tensor integers(const std::vector<int64_t>& values) {
  Tensor tensor({static_cast<int64_t>(values.size())}, DType::kI64);
  std::copy(values.begin(), values.end(), tensor.data<int64_t>());
  return tensor;
}

void append_moments(const std::string& name, const AdamMoments& moments, NamedTensors& tensors) {
  tensors.emplace_back(name + ".mean", moments.mean.to(Device()));
  tensors.emplace_back(name + ".square", moments.square.to(Device()));
  tensors.emplace_back(name + ".steps", integers({moments.steps}));
}

void read_moments(const Safetensors& file, const std::string& name, AdamMoments& moments) {
  const Device device = moments.mean.device();
  moments = find_moments(file, name, moments.mean.shape());
  moments.mean = moments.mean.clone().to(device);
  moments.square = moments.square.clone().to(device);
}

AdamMoments find_moments(const Safetensors& file, const std::string& name, const Shape& shape,
                         DType dtype) {
  const Tensor steps = find_tensor(file, name + ".steps", {1}, DType::kI64);
  return {.mean = find_tensor(file, name + ".mean", shape, dtype),
          .square = find_tensor(file, name + ".square", shape, dtype),
          .steps = steps.data<int64_t>()[0]};
}

}  // namespace dofla
