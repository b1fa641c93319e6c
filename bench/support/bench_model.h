// The model that a whole-model bench runs on.
#pragma once

#include <cstdlib>

#include <fmt/format.h>

#include "dofla/core/file.h"
#include "dofla/core/tensor.h"

namespace dofla::bench {

// gpt2-wiki, which is too large for the repository, where $DOFLA_MODELS names a folder that has it;
// the built-in wiki-mini elsewhere, and says so.
inline fs::path bench_model() {
  const char* models = std::getenv("DOFLA_MODELS");
  const fs::path large = models == nullptr ? fs::path() : fs::path(models) / "gpt2-wiki";
  if (models != nullptr && fs::exists(large / "config.json")) return large;
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
