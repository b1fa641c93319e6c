// The safetensors format: 8 bytes of header length, a JSON header, then the tensors' bytes.
// Files are mapped, never copied; everything the header claims is checked before use.
//
// A matrix NAME of I8 with a NAME_scale of F32 beside it, one factor a row [R, 1] or a column
// [1, C], is one scaled tensor: its factors have no name of their own, in reading and in writing.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dofla/core/mapped_file.h"
#include "dofla/core/tensor.h"

namespace dofla {

class Safetensors {
 public:
  // Maps and validates the file. Throws Error naming the file and the defect.
  explicit Safetensors(const fs::path& path);

  bool contains(const std::string& name) const { return tensors_.contains(name); }
  std::vector<std::string> names() const;  // sorted

  // A read-only view, or a copy if the file has it at an address its type cannot be read from.
  // Throws Error if it is not there.
  Tensor tensor(const std::string& name) const;

  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const fs::path& path() const { return path_; }
  void require_unchanged() const { file_->require_unchanged(); }  // see MappedFile

 private:
  void join_factors();

  fs::path path_;
  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// Writes the file whole or not at all. Throws std::invalid_argument on a name given twice.
void write_safetensors(const fs::path& path, NamedTensors tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace dofla
