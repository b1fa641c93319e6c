// The model that a whole-model bench runs on.
#pragma once

#include <cstdlib>
#include <optional>

#include <fmt/format.h>

#include "dofla/core/file.h"
#include "dofla/core/tensor.h"

namespace dofla::bench {

// gpt2-wiki, which is too large for the repository, where $DOFLA_MODELS names a folder that has it.
inline std::optional<fs::path> gpt2_wiki() {
  const char* models = std::getenv("DOFLA_MODELS");
  if (models == nullptr || !fs::exists(fs::path(models) / "gpt2-wiki/config.json"))
    return std::nullopt;
  return fs::path(models) / "gpt2-wiki";
}

// gpt2-wiki, or the built-in wiki-mini elsewhere, and says so.
inline fs::path bench_model() {
  if (const auto large = gpt2_wiki()) return *large;
  fmt::print("gpt2-wiki skipped: DOFLA_MODELS names no folder that has it\n");
  return fs::path(DOFLA_SOURCE_DIR) / "assets/wiki-mini";
}

// Token ids [1, count] without a pattern that a cache could learn.
inline Tensor some_ids(int64_t count, int64_t vocabulary) {
  Tensor ids({1, count}, DType::kI64);
  for (int64_t i = 0; i < count; ++i) ids.data<int64_t>()[i] = i * 7919 % vocabulary;
  return ids;
}

}  // namespace dofla::bench
