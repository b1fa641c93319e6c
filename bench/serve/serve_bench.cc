// Tokens a second of an engine with one stream and with many, of a teacher and a linear student of
// 64 features a head, and how long the first token of a long prompt takes while others decode.
//
//   serve_bench [--model FOLDER] [--device cpu|cuda] [--streams N,N,…] [--seconds S]
//
// By default the built-in wiki-mini on the CPU, and a model of GPT-2 small's size on a GPU.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <future>
#include <thread>

#include <fmt/format.h>

#include "bench/gpu/random_gpt2.h"
#include "dofla/core/stopwatch.h"
#include "dofla/distill/feature_init.h"
#include "dofla/linear/linear_model.h"
#include "dofla/plan/allocate.h"
#include "dofla/serve/engine.h"

namespace dofla::bench {
namespace {

struct Options {
  fs::path model;
  std::string device = "cpu";
  std::vector<int64_t> streams;
  double seconds = 2;
};

Options read_options(int count, char** arguments) {
  Options options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = arguments[i], value = arguments[i + 1];
    if (name == "--model") options.model = value;
    if (name == "--device") options.device = value;
    if (name == "--seconds") options.seconds = std::stod(value);
    for (size_t at = 0; name == "--streams" && at < value.size();) {
      const size_t comma = std::min(value.find(',', at), value.size());
      options.streams.push_back(std::stoll(value.substr(at, comma - at)));
      at = comma + 1;
    }
  }
  if (options.streams.empty())
    options.streams = options.device == "cpu" ? std::vector<int64_t>{1, 16, 64}
                                              : std::vector<int64_t>{1, 64, 1024};
  return options;
}

GenerationRequest some_request(const Transformer& model, int64_t tokens, int64_t which,
                               const SamplerOptions& sampler) {
  GenerationRequest request;
  for (int64_t i = 0; i < tokens; ++i)
    request.prompt.push_back((7919 * i + 104729 * which) % model.config().vocabulary);
  request.max_tokens = model.most_tokens();
  request.stop_at_end_of_text = false;
  request.sampler = sampler;
  request.sampler.seed = static_cast<uint64_t>(which);
  return request;
}

// An engine with streams that start again whenever one has filled the context.
class Streams {
 public:
  Streams(const Transformer& model, int64_t count, const SamplerOptions& sampler)
      : model_(model),
        sampler_(sampler),
        engine_(model, {.parallel = count + 1, .queue = count, .cache_memory = 0}) {
    for (int64_t i = 0; i < count; ++i) start();
    while (started_ < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  Engine& engine() { return engine_; }
  // Of time, and of processor time, which other programs disturb less: the best of several times,
  // as machines that are shared give and take cores meanwhile.
  struct Rate {
    double tokens = 0, tokens_per_processor = 0;
  };
  Rate measure(double seconds, int times) const {
    Rate best;
    for (int i = 0; i < times; ++i) {
      const int64_t before = engine_.metrics().generated_tokens;
      const std::clock_t used = std::clock();
      const Stopwatch watch;
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      const auto made = static_cast<double>(engine_.metrics().generated_tokens - before);
      if (made / watch.seconds() > best.tokens)
        best = {made / watch.seconds(),
                made * CLOCKS_PER_SEC / static_cast<double>(std::clock() - used)};
    }
    return best;
  }

 private:
  void start() {
    const int64_t which = next_++;
    GenerationRequest request = some_request(model_, 8 + which % 16, which, sampler_);
    auto first = std::make_shared<bool>(true);
    request.on_token = [this, first](const ServedToken&) {
      if (std::exchange(*first, false)) ++started_;
      return true;
    };
    request.on_end = [this](EndReason reason, const Usage&) {
      if (reason != EndReason::kContextFull) return;
      try {
        start();
      } catch (const Error&) {  // the engine takes no more: the measurement is over
      }
    };
    request.on_error = [](const std::exception_ptr& error) { std::rethrow_exception(error); };
    engine_.submit(std::move(request));
  }

  const Transformer& model_;
  const SamplerOptions sampler_;
  std::atomic<int64_t> next_ = 0, started_ = 0;
  Engine engine_;  // goes first: its thread calls the others
};

// Milliseconds to the first token of a long prompt, the median of several.
double first_token(const Transformer& model, Engine& engine, int64_t tokens) {
  std::vector<double> times;
  for (int64_t i = 0; i < 9; ++i) {
    std::promise<double> time;
    GenerationRequest request = some_request(model, tokens, 1000 + i, {.temperature = 0});
    request.max_tokens = 1;
    request.on_end = [&](EndReason, const Usage& usage) { time.set_value(usage.prompt_seconds); };
    engine.submit(std::move(request));
    times.push_back(1e3 * time.get_future().get());
  }
  std::ranges::nth_element(times, times.begin() + 4);
  return times[4];
}

void measure(const std::string& name, const Transformer& model, const Options& options) {
  const int64_t prompt = std::min<int64_t>(1000, model.config().context - 100);
  const std::pair<const char*, SamplerOptions> kinds[] = {{"likeliest", {.temperature = 0}},
                                                          {"top-p 0.95", {}}};
  for (const auto& [how, sampler] : kinds) {
    double one = 0;
    for (const int64_t count : options.streams) {
      Streams streams(model, count, sampler);
      streams.measure(options.seconds / 4, 1);
      const auto [rate, per_processor] = streams.measure(options.seconds, 3);
      if (count == 1) one = rate;
      fmt::print("{:8} {:10} {:5} streams {:10.0f} tokens/s, {:7.0f} a processor second", name, how,
                 count, rate, per_processor);
      if (one > 0 && count > 1) fmt::print(", {:.1f} x one stream", rate / one);
      if (count == 64)
        fmt::print(", {} tokens to the first: {:.1f} ms", prompt,
                   first_token(model, streams.engine(), prompt));
      fmt::print("\n");
      std::fflush(stdout);
    }
  }
}

void run(const Options& options) {
  const Device device = Device::chosen(named<DeviceChoice>(options.device));
  const fs::path built_in = fs::path(DOFLA_SOURCE_DIR) / "assets/wiki-mini";
  const Checkpoint checkpoint = !options.model.empty() ? Checkpoint(options.model)
                                : device.is_cuda()     ? random_gpt2()
                                                       : Checkpoint(built_in);
  fmt::print("{}, {} layers of width {}\n", device.description(), checkpoint.config().layers,
             checkpoint.config().width);
  measure("softmax", Transformer(checkpoint, device), options);
  const FeatureSet features = init_features(fixed_plan(identity_of(checkpoint.config()), 64), {});
  measure("linear", make_linear_model(checkpoint, features, device), options);
}

}  // namespace
}  // namespace dofla::bench

int main(int count, char** arguments) {
  dofla::bench::run(dofla::bench::read_options(count, arguments));
}
