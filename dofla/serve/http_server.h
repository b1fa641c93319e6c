// HTTP for many clients at once, slow and hostile ones among them. One thread does all reading and
// writing and never waits for a client; handlers run on a few workers. Every step has a limit of
// size and time, and what passes one is answered with its status (docs/serve.md#limits).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dofla {

struct HttpLimits {
  size_t header_bytes = size_t{16} << 10;
  size_t body_bytes = size_t{8} << 20;
  size_t unsent_bytes = size_t{1} << 20;  // of a stream that its client does not read
  size_t connections = 512;
  std::chrono::seconds header_time{10}, body_time{60};
  std::chrono::seconds idle_time{60};     // between two requests of a connection
  std::chrono::seconds write_time{30};    // for every 64 KiB that a client takes
  std::chrono::seconds answer_time{600};  // for all of an answer
};

struct HttpOptions {
  std::string host = "127.0.0.1";  // an address
  uint16_t port = 8080;            // 0: any that is free
  int workers = 2;
  HttpLimits limits;
};

struct HttpRequest {
  std::string method;
  std::string path, query;                              // of the target, as they came
  std::string host, origin, fetch_site, authorization;  // header fields; empty: absent
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string type = "application/json";
  std::vector<std::pair<std::string, std::string>> fields = {};  // more of the header
};

class HttpConnection;

// The answer to one request. May be used from any thread; nothing here waits. Once the client has
// gone, everything is ignored.
class HttpReply {
 public:
  HttpReply(std::shared_ptr<HttpConnection> connection, uint64_t number);

  void send(HttpResponse response) const;  // the whole answer
  void begin_stream(HttpResponse head) const;
  void write(std::string piece) const;  // of a stream
  void end() const;

  // Calls `gone` once if the client leaves before its answer has ended, is too slow for it, or the
  // answer takes too long; at once if that has happened.
  void on_gone(std::function<void()> gone) const;

 private:
  std::shared_ptr<HttpConnection> connection_;
  uint64_t number_;  // of the connection's requests
};

struct HttpHandlers {
  // Before the body is read: an answer if the request goes no further. Must be quick.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> gate;
  // On a worker.
  std::function<void(HttpRequest, HttpReply)> handle;
  // The body of an answer that the server itself gives: 400, 408, 413, 431, 500, 503, 504.
  std::function<HttpResponse(int status, const std::string& message)> error;
};

class HttpServer {
 public:
  // Listens. Throws Error if it cannot.
  HttpServer(const HttpOptions& options, HttpHandlers handlers);
  ~HttpServer();  // closes every connection
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  int64_t connections() const;
  void post(std::function<void()> work);  // to a worker

  // Accepts no more clients and closes idle ones; what is being answered goes on.
  void stop_accepting();
  void close_all();                                 // whatever is being answered
  bool wait_until_idle(std::chrono::seconds most);  // whether all answers have gone out by then

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

bool is_loopback(const std::string& address);  // throws Error if it is no address

}  // namespace dofla
