// What is served over HTTP: which path does what, who may, and how it ends.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dofla/serve/api_request.h"
#include "dofla/serve/http_server.h"
#include "dofla/serve/served_model.h"

namespace dofla {

struct ServiceOptions {
  HttpOptions http;
  std::string api_key;  // every request must carry it; empty: only the same machine is answered
  RequestLimits limits;
};

class Service {
 public:
  // Begins to answer. The first model is the one that requests without a name mean. Throws
  // std::invalid_argument if another machine could ask without a key, Error if it cannot listen.
  Service(std::vector<std::shared_ptr<ServedModel>> models, ServiceOptions options);
  ~Service();

  uint16_t port() const { return server_->port(); }

  // Takes no more requests and returns when those under way are answered.
  void drain();

 private:
  struct Call {
    HttpRequest request;
    HttpReply reply;
    std::string rest;  // of the path, decoded, where a route ends with /
  };
  using Handler = void (Service::*)(const Call& call);
  struct Route {
    const char* method;
    const char* path;  // with / at its end: everything below it
    Handler handler;
  };
  static const std::vector<Route>& routes();

  std::optional<HttpResponse> gate(const HttpRequest& request) const;
  void handle(HttpRequest request, const HttpReply& reply);
  void dispatch(Call call);

  void page(const Call& call);
  void health(const Call& call);
  void metrics(const Call& call);
  void list_models(const Call& call);
  void describe_model(const Call& call);
  void complete(const Call& call);
  void chat(const Call& call);
  void tokenize(const Call& call);
  void detokenize(const Call& call);
  void tokenizer_info(const Call& call);
  void list_states(const Call& call);
  void fork_state(const Call& call);
  void fetch_state(const Call& call);
  void bring_state(const Call& call);
  void remove_state(const Call& call);
  static void send_state(const Call& call, const ServedModel& owner, const std::string& name);

  std::shared_ptr<ServedModel> model(const std::string& id) const;

  const std::vector<std::shared_ptr<ServedModel>> models_;
  const ServiceOptions options_;
  std::unique_ptr<HttpServer> server_;
};

// %20 and the like as the bytes that they stand for.
std::string percent_decoded(std::string_view text);

}  // namespace dofla
