// Models that are too large for the repository: folders under $DOFLA_MODELS.
#pragma once

#include <cstdlib>

#include "dofla/core/file.h"

namespace dofla::test {

inline fs::path large_model(const std::string& name) {
  const char* models = std::getenv("DOFLA_MODELS");
  return models == nullptr ? fs::path() : fs::path(models) / name;
}

}  // namespace dofla::test

// Skips the test by name unless the model is there.
#define DOFLA_NEEDS_MODEL(name)                                               \
  if (!::dofla::fs::exists(::dofla::test::large_model(name) / "config.json")) \
  GTEST_SKIP() << name << " is not under DOFLA_MODELS"
