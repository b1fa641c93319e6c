// Named states of one model: kept, forked, listed, removed, and turned into bytes and back. They
// lie in the CPU's memory, and all functions can be called from any thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "dofla/core/error.h"
#include "dofla/serve/snapshot.h"
#include "dofla/serve/state_file.h"

namespace dofla {

// Thrown where there is no state of a name.
class NoSuchState : public Error {
 public:
  using Error::Error;
};

class StateStore {
 public:
  // `fingerprint` is the model's (state_file.h); states take up to `memory` bytes in all. To be
  // made before an engine runs the model.
  StateStore(const Transformer& model, std::string fingerprint, int64_t memory = int64_t{1} << 30);

  // Throws std::invalid_argument unless a name is 1 to 64 letters, digits, '-', '_' and '.', and
  // does not begin with a '.'.
  static void require_name(const std::string& name);

  struct Listed {
    std::string name;
    int64_t tokens = 0, bytes = 0;
  };
  std::vector<Listed> list() const;  // by name
  int64_t bytes() const;

  // Under a name that there is already the new state takes the place of the old one. Throws Error
  // where they would take too much memory; the old one then stays.
  void save(const std::string& name, Snapshot snapshot);
  std::shared_ptr<const Snapshot> find(const std::string& name) const;  // or NoSuchState
  void fork(const std::string& from, const std::string& to);            // the same under two names
  bool remove(const std::string& name);                                 // whether it was there

  std::string write(const std::string& name) const;
  // Throws Error on anything but the bytes of a state of this model.
  void read(const std::string& name, std::string_view bytes);

 private:
  void put(const std::string& name, std::shared_ptr<const Snapshot> snapshot);

  const StateFormat format_;
  const int64_t memory_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Snapshot>> states_;
};

}  // namespace dofla
