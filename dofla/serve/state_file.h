// Snapshots as bytes, to be kept in a file or sent elsewhere. A checksum tells damage, and the
// model's fingerprint another model: both are refused. docs/serve.md has the format.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dofla/checkpoint/fingerprint.h"
#include "dofla/core/json.h"
#include "dofla/serve/snapshot.h"

namespace dofla {

// How the states of a model are written. Works on the CPU alone, whatever device the model is on.
class StateFormat {
 public:
  StateFormat(const Transformer& model, std::string fingerprint);

  std::string write(const Snapshot& snapshot) const;  // one on the CPU
  // Throws Error "where: …" on anything but the bytes of a snapshot of this model.
  Snapshot read(std::string_view bytes, std::string_view where) const;

 private:
  std::string fingerprint_;
  int64_t vocabulary_, width_, most_tokens_;
  DecodeState like_;         // of one sequence
  std::vector<bool> grows_;  // of every tensor of it: [1, Hkv, tokens, D]
};

}  // namespace dofla
