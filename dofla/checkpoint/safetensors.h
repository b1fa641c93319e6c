// The safetensors format: 8 bytes of header length, a JSON header, then the tensors' bytes.
// Files are mapped, never copied; everything the header claims is checked before use.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dofla/core/file.h"
#include "dofla/core/tensor.h"

namespace dofla {

class Safetensors {
 public:
  // Maps and validates the file. Throws Error naming the file and the defect.
  explicit Safetensors(const fs::path& path);

  bool contains(const std::string& name) const { return tensors_.contains(name); }
  std::vector<std::string> names() const;               // sorted
  Tensor tensor(const std::string& name) const;         // read-only view; Error if it is not there
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// Writes the tensors in the order given, whole or not at all.
void write_safetensors(const fs::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace dofla
