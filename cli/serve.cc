#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "cli/assets.h"
#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/interruption.h"
#include "cli/memory_option.h"
#include "cli/output.h"
#include "cli/usage_error.h"
#include "dofla/core/error.h"
#include "dofla/serve/service.h"

namespace dofla::cli {
namespace {

struct ServeArguments {
  std::vector<std::string> folders;
  std::vector<std::string> aliases;
  std::string chat_template, key_file;
  DeviceOption device;
  std::optional<int64_t> cache_memory, state_memory, body;
  int64_t answer_seconds = 600, connections = 512;
  EngineOptions engine;
  ServiceOptions service;
};

// The first line of the file, or DOFLA_API_KEY: a key on the command line would show in `ps`.
std::string read_key(const std::string& file) {
  std::string key;
  if (!file.empty()) {
    key = read_text(file, size_t{1} << 16, Input::kFileOrPipe);
    key = key.substr(0, key.find_first_of("\r\n"));
    if (key.empty()) fail("{}: expected a key in its first line", file);
  } else if (const char* given = std::getenv("DOFLA_API_KEY")) {
    key = given;
  }
  return key;
}

std::string name_of(const std::string& folder) {
  std::error_code error;
  const fs::path whole = fs::canonical(folder, error);
  return (error ? fs::path(folder) : whole).filename().string();
}

std::vector<std::shared_ptr<ServedModel>> load_models(const ServeArguments& options) {
  std::vector<std::string> folders = options.folders;
  if (folders.empty()) folders.push_back(built_in_model().string());
  if (options.aliases.size() > folders.size())
    throw UsageError(
        fmt::format("--alias: {} names for {} models", options.aliases.size(), folders.size()));
  std::vector<std::string> names;
  for (size_t i = 0; i < folders.size(); ++i) {
    names.push_back(i < options.aliases.size() ? options.aliases[i] : name_of(folders[i]));
    for (size_t j = 0; j < i; ++j)
      if (names[j] == names[i])
        throw UsageError(fmt::format("two models are called {}: name each with --alias", names[i]));
  }
  ServedModelOptions each = {.chat_template = options.chat_template,
                             .device = options.device.get(),
                             .engine = options.engine};
  if (folders.size() > 1) each.engine.turn = std::make_shared<Turn>();
  if (options.state_memory) each.state_memory = *options.state_memory;
  if (options.cache_memory) each.engine.cache_memory = *options.cache_memory;
  std::vector<std::shared_ptr<ServedModel>> models;
  for (size_t i = 0; i < folders.size(); ++i) {
    each.id = names[i];
    models.push_back(std::make_shared<ServedModel>(folders[i], each));
    if (!models.back()->has_chat_template())
      remark(models.back()->no_chat_template() + " (--chat-template)");
  }
  return models;
}

void run(ServeArguments options) {
  ServiceOptions& service = options.service;
  service.api_key = read_key(options.key_file);
  service.http.limits.answer_time = std::chrono::seconds(options.answer_seconds);
  service.http.limits.connections = static_cast<size_t>(options.connections);
  if (options.body) service.http.limits.body_bytes = static_cast<size_t>(*options.body);
  service.http.workers =
      static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 2, 2U, 16U));
  const std::vector<std::shared_ptr<ServedModel>> models = load_models(options);
  const StopFlag stop("finishing running requests; a second interruption exits at once");
  Service running = from_arguments([&] { return Service(models, service); });
  const std::string& host = service.http.host;
  print(fmt::format("listening on http://{}:{}\n",
                    host.find(':') == host.npos ? host : "[" + host + "]", running.port()));
  while (!*stop.get()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  running.drain();
}

void add_limits(CLI::App& app, ServeArguments& options) {
  add_number(app, "--parallel", options.engine.parallel, "sequences continued at once", "N",
             whole_between(1, 65536))
      ->capture_default_str();
  add_number(app, "--queue", options.engine.queue, "sequences that may wait for their turn", "N",
             whole_between(1, 1 << 20))
      ->capture_default_str();
  add_memory(app, options.cache_memory,
             "for states of prompts seen before, of each model (default: 256MB)", "--cache-memory");
  add_memory(app, options.state_memory,
             "for states kept under names, of each model (default: 1.07GB)", "--state-memory");
  add_number(app, "--max-tokens", options.service.limits.max_tokens, "tokens of an answer at most",
             "N", whole_from(1))
      ->capture_default_str();
  add_memory(app, options.body, "of a request's body at most (default: 8MB)", "--max-body");
  add_number(app, "--max-connections", options.connections, "clients connected at once", "N",
             whole_between(1, 1 << 20))
      ->capture_default_str();
  add_number(app, "--timeout", options.answer_seconds, "seconds that an answer may take", "S",
             whole_between(1, 86400))
      ->capture_default_str();
}

}  // namespace

Command add_serve(CLI::App& program) {
  CLI::App* app = program.add_subcommand("serve", "Answer requests over HTTP, as OpenAI's API");
  const auto options = std::make_shared<ServeArguments>();
  app->add_option("MODEL", options->folders,
                  "Hugging Face model folders; the first answers requests that name no model\n"
                  "(default: the built-in wiki-mini)")
      ->type_name("...");
  options->device.add(*app);
  app->add_option("--alias", options->aliases,
                  "what requests call the models, in their order (default: the folders' names)")
      ->type_name("NAME...");
  app->add_option("--host", options->service.http.host,
                  "address to listen on; one that other machines reach needs a key")
      ->capture_default_str()
      ->type_name("ADDRESS");
  add_number(*app, "--port", options->service.http.port, "0: any that is free", "N",
             whole_between(0, 65535))
      ->capture_default_str();
  app->add_option("--api-key", options->key_file,
                  "file with the key that requests must carry (default: DOFLA_API_KEY)")
      ->type_name("F");
  app->add_option("--chat-template", options->chat_template,
                  fmt::format("{}\n(default: what the model's folder says)", chat_template_names()))
      ->type_name("NAME");
  add_limits(*app, *options);
  app->footer(
      "/v1/completions, /v1/chat/completions, /v1/models, /health, /metrics, /tokenize,\n"
      "/detokenize, /tokenizer_info, /v1/states; a page at / compares a teacher and its student.\n"
      "On SIGTERM or Ctrl-C running requests are finished, then the server exits. "
      "docs/serve.md.\n\n"
      "Examples:\n"
      "  dofla serve\n"
      "  dofla serve path/to/teacher path/to/student --port 8000\n"
      "  DOFLA_API_KEY=$(cat key) dofla serve path/to/model --host 0.0.0.0\n"
      "  curl localhost:8080/v1/completions -d '{\"prompt\": \"The river\", \"max_tokens\": 8}'");
  return {app, [options] { run(*options); }};
}

}  // namespace dofla::cli
