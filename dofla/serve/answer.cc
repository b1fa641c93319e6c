#include "dofla/serve/answer.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "dofla/core/error.h"
#include "dofla/data/utf8.h"

namespace dofla {
namespace {

constexpr int64_t kCompletionTokens = 16;  // where a request names no number, as OpenAI has it

std::string new_answer_id(bool chat) {
  thread_local std::mt19937_64 random{std::random_device()()};
  return fmt::format("{}-{:016x}{:016x}", chat ? "chatcmpl" : "cmpl", random(), random());
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "unknown failure";
  }
}

}  // namespace

Answer::Answer(std::shared_ptr<const ServedModel> model, Question question, HttpReply reply,
               std::function<void(std::function<void()>)> post)
    : model_(std::move(model)),
      question_(std::move(question)),
      reply_(std::move(reply)),
      post_(std::move(post)),
      id_(new_answer_id(question_.chat)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()) {}

// A continuation keeps the space before its first word, which decoders drop from the beginning of a
// text; an answer of a conversation is a text of its own.
std::unique_ptr<Answer::Choice> Answer::new_choice(size_t prompt) const {
  StreamDecoder decoder(model_->tokenizer());
  if (!question_.chat)
    for (const int64_t id : question_.prompts[prompt]) decoder.next(id);
  std::vector<std::string> stops = question_.options.stop;
  if (const auto end = model_->end_of_turn_text(); question_.chat && end) stops.push_back(*end);
  return std::make_unique<Choice>(TextStream(std::move(decoder), std::move(stops)));
}

GenerationRequest Answer::generation(size_t prompt, size_t choice) {
  const AnswerOptions& options = question_.options;
  const TokenIds& ids = question_.prompts[prompt];
  const int64_t left = model_->model().most_tokens() - std::ssize(ids) + 1;  // in the context
  GenerationRequest request;
  request.prompt = ids;
  request.max_tokens = options.max_tokens.value_or(
      question_.chat ? std::min(left, question_.most_tokens) : kCompletionTokens);
  request.stop_at_end_of_text = !options.ignore_end;
  request.sampler = options.sampler;
  request.sampler.seed += choice % static_cast<size_t>(options.n);
  request.top_logprobs = options.top_logprobs;
  request.score_prompt = question_.echo && options.top_logprobs.has_value();
  request.from_state = options.from_state;
  request.keep_state = options.keep_state;
  const std::shared_ptr<Answer> self = shared_from_this();
  std::atomic<bool>* enough = &choices_[choice]->enough;
  request.on_prompt = [self, choice](std::vector<ServedToken> tokens) {
    self->add(choice, std::move(tokens));
  };
  request.on_token = [self, choice, enough](const ServedToken& token) {
    self->add(choice, token);
    return !*enough;
  };
  request.on_end = [self, choice](EndReason reason, const Usage& usage) {
    self->add(choice, Ended{reason, usage});
  };
  request.on_error = [self, choice](std::exception_ptr error) {
    self->add(choice, std::move(error));
  };
  return request;
}

void Answer::start() {
  const std::lock_guard lock(work_mutex_);  // nothing is sent before all of it is under way
  const auto n = static_cast<size_t>(question_.options.n);
  for (size_t i = 0; i < question_.prompts.size() * n; ++i) choices_.push_back(new_choice(i / n));
  try {
    for (size_t i = 0; i < choices_.size(); ++i)
      choices_[i]->request = model_->engine().submit(generation(i / n, i));
  } catch (const std::exception& error) {
    done_ = true;
    cancel();
    if (dynamic_cast<const QueueFull*>(&error) != nullptr)
      throw ApiError(429, error.what(), {}, "queue_full");
    if (dynamic_cast<const NoSuchState*>(&error) != nullptr)
      throw ApiError(404, error.what(), "from_state", "state_not_found");
    if (dynamic_cast<const std::invalid_argument*>(&error) != nullptr)
      throw ApiError(400, error.what(), {}, "invalid_value");
    throw ApiError(503, error.what());
  }
  reply_.on_gone([self = shared_from_this()] {
    const std::lock_guard now(self->work_mutex_);
    self->done_ = true;
    self->cancel();
  });
  if (question_.options.stream)
    reply_.begin_stream({.type = "text/event-stream", .fields = {{"Cache-Control", "no-store"}}});
  echo_without_scores();
}

void Answer::cancel() {
  for (const auto& choice : choices_)
    if (choice->request != 0 && choice->finish_reason.empty())
      model_->engine().cancel(choice->request);
}

void Answer::add(size_t choice, decltype(Event::what) what) {
  {
    const std::lock_guard lock(queue_mutex_);
    queue_.push_back({choice, std::move(what)});
  }
  if (!scheduled_.exchange(true)) post_([self = shared_from_this()] { self->work(); });
}

void Answer::work() {
  const std::lock_guard lock(work_mutex_);
  std::vector<Event> events;
  {
    scheduled_ = false;
    const std::lock_guard taking(queue_mutex_);
    events.swap(queue_);
  }
  for (Event& event : events) {
    if (done_) return;
    if (const auto* error = std::get_if<std::exception_ptr>(&event.what))
      return fail_with(ApiError(500, message_of(*error)));
    Choice& choice = *choices_[event.choice];
    if (auto* prompt = std::get_if<std::vector<ServedToken>>(&event.what)) take(choice, *prompt);
    if (auto* token = std::get_if<ServedToken>(&event.what)) take(choice, *token);
    if (const auto* ended = std::get_if<Ended>(&event.what)) take(choice, *ended);
  }
  if (done_) return;
  if (question_.options.stream) send_events();
  finish_if_done();
}

// The prompt is the beginning of the answer. What a tokenizer added to a text was not in it.
void Answer::take(Choice& choice, std::vector<ServedToken>& prompt) {
  size_t index = 0;  // of the prompt
  while (choices_[index].get() != &choice) ++index;
  index /= static_cast<size_t>(question_.options.n);
  StreamDecoder decoder(model_->tokenizer(), question_.from_text[index]);
  for (ServedToken& token : prompt) {
    const int64_t at = count_characters(choice.text);
    choice.text += decoder.next(token.id);
    if (question_.options.top_logprobs) choice.tokens.push_back({std::move(token), at});
  }
  choice.text += decoder.finish();
  choice.echoed = count_characters(choice.text);
}

void Answer::echo_without_scores() {
  if (!question_.echo || question_.options.top_logprobs) return;
  const auto n = static_cast<size_t>(question_.options.n);
  for (size_t i = 0; i < choices_.size(); ++i) {
    std::vector<ServedToken> prompt;
    for (const int64_t id : question_.prompts[i / n]) prompt.push_back({id, {}, {}});
    take(*choices_[i], prompt);
  }
}

void Answer::take(Choice& choice, ServedToken& token) {
  if (choice.enough) return;  // what comes between a stop string and its effect
  ++choice.completion_tokens;
  const bool end =
      !question_.options.ignore_end && (token.id == model_->model().config().end_of_text ||
                                        (question_.chat && token.id == model_->end_of_turn()));
  if (end) {
    choice.enough = true;
    return;
  }
  const int64_t id = token.id;
  if (question_.options.top_logprobs) choice.waiting.push_back(std::move(token));
  show(choice, choice.stream.next(id));
  if (choice.stream.stopped()) choice.enough = true;
}

void Answer::take(Choice& choice, const Ended& ended) {
  if (ended.reason == EndReason::kCancelled) return;  // nobody is there to read it
  if (ended.reason == EndReason::kShutdown)
    return fail_with(ApiError(503, "the server is shutting down"));
  show(choice, choice.stream.finish());
  choice.usage = ended.usage;
  const bool stopped =
      choice.enough || choice.stream.stopped() || ended.reason == EndReason::kEndOfText;
  choice.finish_reason = stopped ? "stop" : "length";
}

void Answer::show(Choice& choice, const TextStream::Shown& shown) {
  choice.text += shown.text;
  for (const int64_t offset : shown.offsets) {
    if (choice.waiting.empty()) break;
    choice.tokens.push_back({std::move(choice.waiting.front()), choice.echoed + offset});
    choice.waiting.pop_front();
  }
}

void Answer::fail_with(const ApiError& error) {
  done_ = true;
  cancel();
  if (!question_.options.stream)
    return reply_.send({.status = error.status(), .body = to_text(error.json())});
  reply_.write(to_event(error.json()));
  reply_.end();
}

}  // namespace dofla
