#include "dofla/serve/service.h"

#include <charconv>
#include <utility>

#include "dofla/core/error.h"
#include "dofla/serve/access.h"
#include "dofla/serve/answer.h"
#include "dofla/serve/metrics_text.h"
#include "dofla/serve/page.h"

namespace dofla {
namespace {

constexpr std::chrono::seconds kLastBytes{10};  // for clients to take what is ready

HttpResponse json_response(const OrderedJson& json) {
  return {.body = to_text(json)};
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse out = {.status = error.status(), .body = to_text(error.json())};
  if (error.status() == 401) out.fields.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status() == 429 || error.status() == 503) out.fields.emplace_back("Retry-After", "1");
  return out;
}

}  // namespace

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* end = text.data() + std::min(i + 3, text.size());
    const bool escape = text[i] == '%' && end - text.data() == static_cast<ptrdiff_t>(i + 3) &&
                        std::from_chars(text.data() + i + 1, end, byte, 16).ptr == end;
    out += escape ? static_cast<char>(byte) : text[i];
    if (escape) i += 2;
  }
  return out;
}

const std::vector<Service::Route>& Service::routes() {
  static const std::vector<Route> routes = {
      {"GET", "/", &Service::page},
      {"GET", "/page.css", &Service::page},
      {"GET", "/page.js", &Service::page},
      {"GET", "/health", &Service::health},
      {"GET", "/metrics", &Service::metrics},
      {"GET", "/v1/models", &Service::list_models},
      {"GET", "/v1/models/", &Service::describe_model},
      {"POST", "/v1/completions", &Service::complete},
      {"POST", "/v1/chat/completions", &Service::chat},
      {"POST", "/tokenize", &Service::tokenize},
      {"POST", "/detokenize", &Service::detokenize},
      {"GET", "/tokenizer_info", &Service::tokenizer_info},
      {"GET", "/v1/states", &Service::list_states},
      {"POST", "/v1/states", &Service::fork_state},
      {"GET", "/v1/states/", &Service::fetch_state},
      {"PUT", "/v1/states/", &Service::bring_state},
      {"DELETE", "/v1/states/", &Service::remove_state},
  };
  return routes;
}

Service::Service(std::vector<std::shared_ptr<ServedModel>> models, ServiceOptions options)
    : models_(std::move(models)), options_(std::move(options)) {
  require(!models_.empty(), "serve: no model");
  require(!options_.api_key.empty() || is_loopback(options_.http.host),
          "other machines can reach {}: give an API key that they must know, in DOFLA_API_KEY or a "
          "file",
          options_.http.host);
  HttpHandlers handlers;
  handlers.gate = [this](const HttpRequest& request) { return gate(request); };
  handlers.handle = [this](HttpRequest request, const HttpReply& reply) {
    handle(std::move(request), reply);
  };
  handlers.error = [](int status, const std::string& message) {
    return error_response(ApiError(status, message));
  };
  server_ = std::make_unique<HttpServer>(options_.http, std::move(handlers));
}

// Clients are let go, which cancels what they asked for; once the engines are done with that,
// nothing refers to the server any more.
Service::~Service() {
  server_->stop_accepting();
  server_->close_all();
  for (const auto& model : models_) model->engine().drain();
}

void Service::drain() {
  server_->stop_accepting();
  for (const auto& model : models_) model->engine().drain();
  server_->wait_until_idle(kLastBytes);
}

std::optional<HttpResponse> Service::gate(const HttpRequest& request) const {
  try {
    require_access(request, options_.api_key);
    return std::nullopt;
  } catch (const ApiError& error) {
    return error_response(error);
  }
}

void Service::handle(HttpRequest request, const HttpReply& reply) {
  try {
    dispatch({std::move(request), reply, {}});
  } catch (const ApiError& error) {
    reply.send(error_response(error));
  } catch (const std::exception& error) {
    reply.send(error_response(ApiError(500, error.what())));
  }
}

void Service::dispatch(Call call) {
  const std::string& path = call.request.path;
  const std::string method = call.request.method == "HEAD" ? "GET" : call.request.method;
  std::string allowed;
  for (const Route& route : routes()) {
    const std::string_view pattern = route.path;
    const bool below = pattern.size() > 1 && pattern.ends_with('/');
    const bool matches =
        below ? path.starts_with(pattern) && path.size() > pattern.size() : path == pattern;
    if (!matches) continue;
    if (method == route.method) {
      if (below) call.rest = percent_decoded(path.substr(pattern.size()));
      return (this->*route.handler)(call);
    }
    allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
  }
  if (allowed.empty())
    throw ApiError(404, fmt::format("nothing is served at {}", printable(path)), {}, "not_found");
  HttpResponse response = error_response(
      ApiError(405, fmt::format("{} takes {}, not {}", path, allowed, printable(method))));
  response.fields.emplace_back("Allow", allowed);
  call.reply.send(std::move(response));
}

std::shared_ptr<ServedModel> Service::model(const std::string& id) const {
  if (id.empty()) return models_.front();
  for (const auto& model : models_)
    if (model->id() == id) return model;
  throw ApiError(
      404,
      fmt::format("model {} is not served here: /v1/models lists those that are", printable(id)),
      "model", "model_not_found");
}

void Service::page(const Call& call) {
  call.reply.send(page_response(call.request.path).value());
}

void Service::health(const Call& call) {
  call.reply.send({.body = R"({"status":"ok"})"});
}

void Service::metrics(const Call& call) {
  std::vector<std::pair<std::string, EngineMetrics>> all;
  for (const auto& model : models_) all.emplace_back(model->id(), model->engine().metrics());
  call.reply.send({.body = metrics_text(all, server_->connections()),
                   .type = "text/plain; version=0.0.4; charset=utf-8"});
}

void Service::list_models(const Call& call) {
  OrderedJson list = {{"object", "list"}, {"data", OrderedJson::array()}};
  for (const auto& model : models_) list["data"].push_back(model->describe());
  call.reply.send(json_response(list));
}

void Service::describe_model(const Call& call) {
  call.reply.send(json_response(model(call.rest)->describe()));
}

void Service::complete(const Call& call) {
  CompletionRequest request =
      parse_completion_request(parse_body(call.request.body), options_.limits);
  const std::shared_ptr<ServedModel> asked = model(request.options.model);
  Answer::Question question = {.options = request.options, .echo = request.echo};
  for (const Prompt& prompt : request.prompts) {
    const bool goes_on = !request.options.from_state.empty();
    question.prompts.push_back(asked->prompt_ids(prompt, goes_on));
    question.from_text.push_back(std::holds_alternative<std::string>(prompt));
  }
  std::make_shared<Answer>(asked, std::move(question), call.reply, [this](auto work) {
    server_->post(std::move(work));
  })->start();
}

void Service::chat(const Call& call) {
  ChatRequest request = parse_chat_request(parse_body(call.request.body), options_.limits);
  const std::shared_ptr<ServedModel> asked = model(request.options.model);
  Answer::Question question = {.options = request.options,
                               .prompts = {asked->chat_ids(request.messages)},
                               .from_text = {true},
                               .most_tokens = options_.limits.max_tokens,
                               .chat = true};
  std::make_shared<Answer>(asked, std::move(question), call.reply, [this](auto work) {
    server_->post(std::move(work));
  })->start();
}

void Service::tokenize(const Call& call) {
  const Json body = parse_body(call.request.body);
  const auto asked = model(text_field(body, "model").value_or(""));
  TokenIds ids;
  if (body.contains("messages")) {
    ids = asked->chat_ids(parse_messages(body));
  } else {
    std::optional<std::string> text;
    for (const char* name : {"prompt", "content", "text"})  // as vLLM, llama.cpp and others call it
      if (!text) text = text_field(body, name);
    if (!text) refuse("prompt", "expected text");
    ids = asked->tokenizer().encode(*text, flag_field(body, "add_special_tokens", true));
  }
  call.reply.send(json_response({{"tokens", ids}, {"count", ids.size()}}));
}

void Service::detokenize(const Call& call) {
  const Json body = parse_body(call.request.body);
  const auto asked = model(text_field(body, "model").value_or(""));
  const TokenIds ids = ids_field(body.value("tokens", Json()), "tokens");
  const std::string text = asked->tokenizer().decode(ids);
  call.reply.send(json_response({{"prompt", text}, {"content", text}}));
}

void Service::tokenizer_info(const Call& call) {
  call.reply.send(json_response(models_.front()->tokenizer_info()));
}

}  // namespace dofla
