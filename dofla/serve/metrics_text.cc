#include "dofla/serve/metrics_text.h"

#include <algorithm>

namespace dofla {
namespace {

struct Metric {
  const char* name;
  const char* type;
  const char* help;
  double (*value)(const EngineMetrics&);
};

double ratio(int64_t count, double of) {
  return of > 0 ? static_cast<double>(count) / of : 0;
}

double number(int64_t count) {
  return static_cast<double>(count);
}

const Metric kMetrics[] = {
    {"llamacpp:prompt_tokens_total", "counter",
     "Number of prompt tokens processed, excluding cached tokens",
     [](const EngineMetrics& m) { return number(m.prompt_tokens); }},
    {"llamacpp:prompt_tokens_cached_total", "counter",
     "Number of prompt tokens reused from the cache",
     [](const EngineMetrics& m) { return number(m.cached_tokens); }},
    {"llamacpp:prompt_seconds_total", "counter", "Total time spent processing prompts",
     [](const EngineMetrics& m) { return m.prompt_seconds; }},
    {"llamacpp:tokens_predicted_total", "counter", "Number of generation tokens processed",
     [](const EngineMetrics& m) { return number(m.generated_tokens); }},
    {"llamacpp:tokens_predicted_seconds_total", "counter", "Total time spent generating tokens",
     [](const EngineMetrics& m) { return m.decode_seconds; }},
    {"llamacpp:n_decode_total", "counter", "Total number of decode steps",
     [](const EngineMetrics& m) { return number(m.steps); }},
    {"llamacpp:prompt_tokens_seconds", "gauge", "Average prompt throughput in tokens/s",
     [](const EngineMetrics& m) { return ratio(m.prompt_tokens, m.prompt_seconds); }},
    {"llamacpp:predicted_tokens_seconds", "gauge", "Average generation throughput in tokens/s",
     [](const EngineMetrics& m) { return ratio(m.generated_tokens, m.decode_seconds); }},
    {"llamacpp:requests_processing", "gauge", "Number of sequences processing",
     [](const EngineMetrics& m) { return number(m.running); }},
    {"llamacpp:requests_deferred", "gauge", "Number of sequences waiting",
     [](const EngineMetrics& m) { return number(m.waiting); }},
    {"llamacpp:n_busy_slots_per_decode", "gauge", "Average number of sequences per decode step",
     [](const EngineMetrics& m) { return ratio(m.generated_tokens, number(m.steps)); }},
    {"dofla:requests_total", "counter", "Number of sequences that have ended",
     [](const EngineMetrics& m) { return number(m.requests); }},
    {"dofla:cache_hits_total", "counter", "Number of prompts whose beginning was in the cache",
     [](const EngineMetrics& m) { return number(m.cache_hits); }},
    {"dofla:cache_entries", "gauge", "Number of states in the cache of prompts",
     [](const EngineMetrics& m) { return number(m.cache_entries); }},
    {"dofla:cache_bytes", "gauge", "Memory of the cache of prompts",
     [](const EngineMetrics& m) { return number(m.cache_bytes); }},
    {"dofla:state_bytes", "gauge", "Memory of the states of running sequences",
     [](const EngineMetrics& m) { return number(m.state_bytes); }},
};

// A label's value: backslash, quote and line break are escaped.
std::string label(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? "\\n" : std::string(1, c);
  }
  return out;
}

}  // namespace

std::string metrics_text(const std::vector<std::pair<std::string, EngineMetrics>>& models,
                         int64_t connections) {
  std::string out;
  for (const Metric& metric : kMetrics) {
    out += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", metric.name, metric.help, metric.type);
    for (const auto& [id, metrics] : models)
      out += fmt::format("{}{{model=\"{}\"}} {}\n", metric.name, label(id), metric.value(metrics));
  }
  out += fmt::format(
      "# HELP dofla:connections Number of open connections\n# TYPE dofla:connections gauge\n"
      "dofla:connections {}\n",
      connections);
  return out;
}

}  // namespace dofla
