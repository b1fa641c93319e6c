// A Hugging Face model folder: config.json and the tensors of one or several safetensors files.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dofla/checkpoint/hf_config.h"
#include "dofla/checkpoint/safetensors.h"

namespace dofla {

class Checkpoint {
 public:
  // Opens model.safetensors, or the shards that model.safetensors.index.json names. Nothing is
  // read but headers. Throws Error naming the file and the defect.
  explicit Checkpoint(const fs::path& folder);

  const fs::path& folder() const { return folder_; }
  const Json& config_json() const { return config_json_; }
  const ModelConfig& config() const { return config_; }

  bool contains(const std::string& name) const { return shard_of_.contains(name); }
  std::vector<std::string> names() const;  // sorted

  // The tensor, read-only. Throws Error unless it is there with this shape and a float type, or
  // scaled:
  //   model.safetensors: h.3.attn.c_attn.weight: expected [768, 2304], found [768, 768]
  Tensor tensor(const std::string& name, const Shape& expected) const;
  Tensor tensor(const std::string& name) const;

  // The same checkpoint with other tensors in the place of those of these names. Throws
  // std::invalid_argument if it has no such tensor, or one of another shape.
  Checkpoint with(const NamedTensors& tensors) const;

  // Throws Error if one of the files was written to since it was opened. To be called once no more
  // of it is needed, before a result is believed.
  void require_unchanged() const;

 private:
  fs::path folder_;
  Json config_json_;
  ModelConfig config_;
  std::vector<Safetensors> shards_;
  std::map<std::string, size_t> shard_of_;
  std::map<std::string, Tensor> replaced_;  // what with() put in the place of a file's tensor
};

}  // namespace dofla
