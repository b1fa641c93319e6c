#include "dofla/checkpoint/fingerprint.h"

#include "dofla/core/fingerprint.h"
#include "dofla/core/parallel.h"

namespace dofla {
namespace {

void add_elements(const Tensor& tensor, Fingerprint& print) {
  const Tensor here = tensor.to(Device());
  print.add({static_cast<const std::byte*>(here.raw()), static_cast<size_t>(here.bytes())});
  if (tensor.is_scaled()) add_elements(tensor.factors(), print);
}

}  // namespace

std::string fingerprint_of(const NamedTensors& tensors) {
  Fingerprint print;
  for (const auto& [name, tensor] : tensors) add_elements(tensor, print);
  return print.text();
}

std::string fingerprint_of(const Checkpoint& checkpoint) {
  const std::vector<std::string> names = checkpoint.names();
  std::vector<std::string> parts(names.size());
  parallel_for(std::ssize(names), [&](int64_t i) {
    const Tensor tensor = checkpoint.tensor(names[static_cast<size_t>(i)]);
    Fingerprint print;
    add_elements(tensor, print);
    parts[static_cast<size_t>(i)] =
        fmt::format("{} {} {} {}", names[static_cast<size_t>(i)], name(tensor.dtype()),
                    to_string(tensor.shape()), print.text());
  });
  Fingerprint whole;
  parts.push_back(checkpoint.config_json().dump(-1, ' ', false, Json::error_handler_t::replace));
  for (const std::string& part : parts) whole.add(std::as_bytes(std::span(part)));
  return whole.text();
}

}  // namespace dofla
