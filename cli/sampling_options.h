// --temperature, --top-k, --top-p and --seed: how the next token is drawn.
#pragma once

#include <CLI/CLI.hpp>

#include "dofla/generate/sampler.h"

namespace dofla::cli {

void add_sampling_options(CLI::App& app, SamplerOptions& sampler);

}  // namespace dofla::cli
