#include "dofla/serve/state_store.h"

#include <algorithm>
#include <utility>

#include "dofla/core/bytes.h"
#include "dofla/core/json.h"

namespace dofla {
namespace {

// Forks are one snapshot under several names.
int64_t total_bytes(const std::map<std::string, std::shared_ptr<const Snapshot>>& states) {
  std::vector<const Snapshot*> all;
  all.reserve(states.size());
  for (const auto& [name, snapshot] : states) all.push_back(snapshot.get());
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  int64_t bytes = 0;
  for (const Snapshot* snapshot : all) bytes += snapshot->bytes();
  return bytes;
}

}  // namespace

StateStore::StateStore(const Transformer& model, std::string fingerprint, int64_t memory)
    : format_(model, std::move(fingerprint)), memory_(memory) {
  require(memory > 0, "states: {} bytes of memory", memory);
}

void StateStore::require_name(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  require(
      !name.empty() && name.size() <= 64 && name[0] != '.' && std::ranges::all_of(name, allowed),
      "a state's name is 1 to 64 letters, digits, '-', '_' and '.', found {}", excerpt(name));
}

std::vector<StateStore::Listed> StateStore::list() const {
  const std::lock_guard held(mutex_);
  std::vector<Listed> all;
  for (const auto& [name, snapshot] : states_)
    all.push_back({name, std::ssize(snapshot->tokens), snapshot->bytes()});
  return all;
}

int64_t StateStore::bytes() const {
  const std::lock_guard held(mutex_);
  return total_bytes(states_);
}

void StateStore::put(const std::string& name, std::shared_ptr<const Snapshot> snapshot) {
  require_name(name);
  const std::lock_guard held(mutex_);
  auto changed = states_;
  changed[name] = std::move(snapshot);
  const int64_t bytes = total_bytes(changed);
  if (bytes > memory_)
    fail("with the state {} all states would take {} of {}: remove some first", name,
         with_bytes_unit(bytes), with_bytes_unit(memory_));
  states_ = std::move(changed);
}

void StateStore::save(const std::string& name, Snapshot snapshot) {
  snapshot.state =
      snapshot.state.transform([](const Tensor& tensor) { return tensor.to(Device()); });
  if (snapshot.hidden.defined()) snapshot.hidden = snapshot.hidden.to(Device());
  put(name, std::make_shared<const Snapshot>(std::move(snapshot)));
}

std::shared_ptr<const Snapshot> StateStore::find(const std::string& name) const {
  const std::lock_guard held(mutex_);
  const auto found = states_.find(name);
  if (found == states_.end())
    throw NoSuchState(fmt::format("there is no state named {}", excerpt(name)));
  return found->second;
}

void StateStore::fork(const std::string& from, const std::string& to) {
  put(to, find(from));
}

bool StateStore::remove(const std::string& name) {
  const std::lock_guard held(mutex_);
  return states_.erase(name) > 0;
}

std::string StateStore::write(const std::string& name) const {
  return format_.write(*find(name));
}

void StateStore::read(const std::string& name, std::string_view bytes) {
  require_name(name);
  put(name, std::make_shared<const Snapshot>(format_.read(bytes, "the state " + name)));
}

}  // namespace dofla
