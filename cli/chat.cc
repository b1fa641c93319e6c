#include <condition_variable>
#include <iostream>
#include <memory>
#include <mutex>

#include <unistd.h>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/interruption.h"
#include "cli/output.h"
#include "cli/sampling_options.h"
#include "dofla/checkpoint/tokenizer/unicode.h"
#include "dofla/core/error.h"
#include "dofla/serve/served_model.h"
#include "dofla/serve/text_stream.h"

namespace dofla::cli {
namespace {

struct ChatArguments {
  ModelArgument model;
  DeviceOption device;
  std::string chat_template, system;
  int64_t max_tokens = 512;
  SamplerOptions sampler;
};

// An answer on its way from the engine's thread to the terminal.
struct Arriving {
  std::mutex mutex;
  std::condition_variable changed;
  TokenIds ids;
  bool ended = false;
  std::exception_ptr error;
};

// The next tokens; none once the answer has ended.
TokenIds wait_for_tokens(Arriving& arriving, const std::atomic<bool>& stop) {
  std::unique_lock lock(arriving.mutex);
  const auto news = [&] { return !arriving.ids.empty() || arriving.ended; };
  while (!news() && !stop) arriving.changed.wait_for(lock, std::chrono::milliseconds(50), news);
  if (arriving.error) std::rethrow_exception(arriving.error);
  return std::exchange(arriving.ids, {});
}

// Prints the answer as it comes; Ctrl-C ends it where it is.
std::string answer(const ServedModel& model, const ChatArguments& options,
                   const std::vector<ChatMessage>& messages) {
  const auto arriving = std::make_shared<Arriving>();
  const StopFlag stop("");
  GenerationRequest request;
  try {
    request.prompt = model.chat_ids(messages);
  } catch (const ApiError& error) {
    fail("{}", error.what());
  }
  request.max_tokens = options.max_tokens;
  request.sampler = options.sampler;
  request.on_token = [arriving, &model](const ServedToken& token) {
    const std::lock_guard lock(arriving->mutex);
    const bool end =
        token.id == model.end_of_turn() || token.id == model.model().config().end_of_text;
    if (!end) arriving->ids.push_back(token.id);
    arriving->changed.notify_one();
    return !end;
  };
  const auto finish = [arriving](std::exception_ptr error) {
    const std::lock_guard lock(arriving->mutex);
    arriving->ended = true;
    arriving->error = std::move(error);
    arriving->changed.notify_one();
  };
  request.on_end = [finish](EndReason, const Usage&) { finish(nullptr); };
  request.on_error = finish;
  std::vector<std::string> stops;
  if (const auto end = model.end_of_turn_text()) stops.push_back(*end);
  TextStream stream(StreamDecoder(model.tokenizer()), stops);
  const Engine::RequestId id = model.engine().submit(std::move(request));
  std::string text;
  const auto add = [&](const std::string& piece) {
    text += piece;
    print(piece);
  };
  for (TokenIds ids; !*stop.get() && !stream.stopped();) {
    ids = wait_for_tokens(*arriving, *stop.get());
    if (ids.empty()) break;
    for (const int64_t token : ids) add(stream.next(token).text);
  }
  model.engine().cancel(id);
  add(stream.finish().text);
  print("\n");
  return text;
}

void run(const ChatArguments& options) {
  const fs::path folder = options.model.folder();
  const ServedModel model(folder, {.id = fs::path(folder).filename().string(),
                                   .chat_template = options.chat_template,
                                   .device = options.device.get(),
                                   .engine = {.parallel = 1}});
  if (!model.has_chat_template()) fail("{} (--chat-template)", model.no_chat_template());
  const bool on_terminal = ::isatty(STDIN_FILENO) == 1;
  if (on_terminal) remark("Ctrl-C stops an answer, Ctrl-D ends the conversation");
  std::vector<ChatMessage> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system});
  for (std::string line; (on_terminal ? print("> ") : void()), std::getline(std::cin, line);) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    std::string repaired;
    append_repaired(line, /*more_follows=*/false, repaired);
    messages.push_back({"user", repaired});
    messages.push_back({"assistant", answer(model, options, messages)});
  }
  if (on_terminal) print("\n");
}

}  // namespace

Command add_chat(CLI::App& program) {
  CLI::App* app = program.add_subcommand("chat", "Talk with a model in the terminal");
  const auto options = std::make_shared<ChatArguments>();
  options->model.add(*app);
  options->device.add(*app);
  app->add_option("--chat-template", options->chat_template,
                  fmt::format("{}\n(default: what the model's folder says)", chat_template_names()))
      ->type_name("NAME");
  app->add_option("--system", options->system, "system message, before the conversation")
      ->type_name("TEXT");
  add_number(*app, "--max-tokens", options->max_tokens, "tokens of an answer at most", "N",
             whole_from(1))
      ->capture_default_str();
  add_sampling_options(*app, options->sampler);
  app->footer(
      "A line is a message. Ctrl-C stops an answer, Ctrl-D ends the conversation. The model sees\n"
      "all that was said so far.\n\n"
      "Examples:\n"
      "  dofla chat path/to/tinyllama\n"
      "  dofla chat path/to/model --chat-template chatml --system \"Answer in one sentence.\"");
  return {app, [options] { run(*options); }};
}

}  // namespace dofla::cli
