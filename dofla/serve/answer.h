// One request's answers on their way: tokens come from the engine's thread, become text on a
// worker, and go out as one JSON object or as a stream of events.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "dofla/serve/answer_json.h"
#include "dofla/serve/api_request.h"
#include "dofla/serve/http_server.h"
#include "dofla/serve/served_model.h"
#include "dofla/serve/text_stream.h"

namespace dofla {

class Answer : public std::enable_shared_from_this<Answer> {
 public:
  struct Question {
    AnswerOptions options = {};
    std::vector<TokenIds> prompts = {};
    std::vector<bool> from_text =
        {};                   // of each prompt: special tokens in it were added, not written
    int64_t most_tokens = 0;  // of an answer in a conversation that names no number
    bool chat = false;
    bool echo = false;
  };

  Answer(std::shared_ptr<const ServedModel> model, Question question, HttpReply reply,
         std::function<void(std::function<void()>)> post);

  // Hands everything to the engine. Throws ApiError if it cannot; nothing has been sent then.
  void start();

 private:
  struct Ended {
    EndReason reason;
    Usage usage;
  };
  struct Event {
    size_t choice;
    std::variant<std::vector<ServedToken>, ServedToken, Ended, std::exception_ptr> what;
  };
  struct Choice {
    explicit Choice(TextStream text_stream) : stream(std::move(text_stream)) {}

    TextStream stream;
    Engine::RequestId request = 0;
    std::atomic<bool> enough = false;  // read by the engine's thread: it need not go on
    std::deque<ServedToken> waiting;   // tokens whose text is not yet shown
    std::string text;                  // not yet sent
    std::vector<AnsweredToken> tokens;
    int64_t echoed = 0;  // characters
    int64_t completion_tokens = 0;
    Usage usage;
    std::string finish_reason;         // empty: goes on
    bool began = false, sent = false;  // its first and its last event were sent
  };

  std::unique_ptr<Choice> new_choice(size_t prompt) const;
  GenerationRequest generation(size_t prompt, size_t choice);
  void add(size_t choice, decltype(Event::what) what);  // on the engine's thread
  void work();
  void take(Choice& choice, std::vector<ServedToken>& prompt);
  void take(Choice& choice, ServedToken& token);
  void take(Choice& choice, const Ended& ended);
  void show(Choice& choice, const TextStream::Shown& shown);
  void echo_without_scores();
  void fail_with(const ApiError& error);
  void cancel();

  OrderedJson envelope(const char* suffix) const;
  OrderedJson choice_json(size_t index);
  OrderedJson logprobs(Choice& choice) const;
  OrderedJson usage() const;
  void send_events();
  void finish_if_done();

  const std::shared_ptr<const ServedModel> model_;
  const Question question_;
  const HttpReply reply_;
  const std::function<void(std::function<void()>)> post_;
  std::string id_;
  int64_t created_ = 0;

  std::mutex queue_mutex_;
  std::vector<Event> queue_;
  std::atomic<bool> scheduled_ = false;

  std::mutex work_mutex_;  // of what follows
  std::vector<std::unique_ptr<Choice>> choices_;
  bool done_ = false;
};

}  // namespace dofla
