// What ranks have to agree on: that they do the same job, and when to stop. Of a process alone all
// of this is true at once.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "dofla/checkpoint/checkpoint.h"
#include "dofla/core/json.h"
#include "dofla/core/progress.h"
#include "dofla/distributed/group.h"

namespace dofla {

// All ranks. Throws Error on all of them, naming the first rank that differs from rank 0.
void require_same(const Group& group, std::string_view what, std::string_view value);
// The same of an object, naming also the first setting in which it differs.
void require_same(const Group& group, const Json& settings);
// The same of all weights of a model, which are read for it.
void require_same_weights(const Group& group, const Checkpoint& model);

// All ranks. What one of them throws as an E, all throw.
template <class E, class Work>
void together(const Group& group, const Work& work) {
  if (group.alone()) return work();
  std::string problem;
  try {
    work();
  } catch (const E& error) {
    problem = error.what();
  }
  for (const std::string& one : group.gather(problem))
    if (!one.empty()) throw E(one);
}

// All ranks: tells, and throws Cancelled on all of them if one was asked to stop.
void report(const Group& group, const Progress& progress, const ProgressUpdate& update);

// For work that ranks do each at its own pace: without the flag that asks to stop, for nobody may
// leave while others wait for what it was to bring. The work of all is shown, not that of one.
Progress at_own_pace(const Group& group, const Progress& progress);

// All ranks: the things that each of them brings, by their numbers.
template <class T>
std::vector<std::vector<T>> gather_all(const Group& group, const std::vector<T>& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<std::vector<T>> all;
  for (const std::string& bytes :
       group.gather({reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(T)})) {
    all.emplace_back(bytes.size() / sizeof(T));
    if (!bytes.empty())
      std::memcpy(static_cast<void*>(all.back().data()), bytes.data(), bytes.size());
  }
  return all;
}

// All ranks. Where each has some rows of a table, in its share of all of them: all rows, on all.
template <class T>
void gather_rows(const Group& group, std::vector<std::vector<T>>& rows) {
  if (group.alone()) return;
  const Share own = group.share(static_cast<int64_t>(rows.size()));
  std::vector<int64_t> sizes;
  std::vector<T> elements;
  for (int64_t i = own.begin; i < own.end; ++i) {
    const std::vector<T>& row = rows[static_cast<size_t>(i)];
    sizes.push_back(static_cast<int64_t>(row.size()));
    elements.insert(elements.end(), row.begin(), row.end());
  }
  const std::vector<std::vector<int64_t>> all_sizes = gather_all(group, sizes);
  const std::vector<std::vector<T>> all = gather_all(group, elements);
  auto row = rows.begin();  // shares lie in the order of the ranks
  for (size_t rank = 0; rank < all.size(); ++rank) {
    auto at = all[rank].begin();
    for (const int64_t size : all_sizes[rank]) {
      (row++)->assign(at, at + size);
      at += size;
    }
  }
}

// All ranks: the things that they bring by turns, thing i from rank i mod size, in their order.
template <class T>
std::vector<T> gather_turns(const Group& group, const std::vector<T>& mine) {
  if (group.alone()) return mine;
  const std::vector<std::vector<T>> ranks = gather_all(group, mine);
  std::vector<T> all;
  for (size_t i = 0; i < ranks.front().size() * ranks.size(); ++i)
    if (const std::vector<T>& rank = ranks[i % ranks.size()]; i / ranks.size() < rank.size())
      all.push_back(rank[i / ranks.size()]);
  return all;
}

}  // namespace dofla
