// What Prometheus reads at /metrics. Names are llama.cpp's where they mean the same.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dofla/serve/engine.h"

namespace dofla {

std::string metrics_text(const std::vector<std::pair<std::string, EngineMetrics>>& models,
                         int64_t connections);

}  // namespace dofla
