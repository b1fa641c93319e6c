// One client's connection: requests in, answers out, a limit on every step. Only http_*.cc
// include this; everything runs on the server's one thread unless it says otherwise.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "dofla/serve/http_server.h"

namespace dofla {

// What connections share.
struct HttpShared {
  HttpLimits limits;
  HttpHandlers handlers;
  std::function<void(std::function<void()>)> post;  // to a worker
  std::function<void(HttpConnection*)> closed;      // it is not open any more
  std::atomic<bool> stopping = false;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  HttpConnection(Socket socket, std::shared_ptr<HttpShared> shared);

  void start();
  void refuse(int status, const std::string& message);  // answers that, then closes
  void close_if_idle();
  void close();

  // From any thread, for the HttpReply of that number.
  void send(uint64_t number, HttpResponse response);
  void begin_stream(uint64_t number, HttpResponse head);
  void write(uint64_t number, std::string piece);
  void end(uint64_t number);
  void on_gone(uint64_t number, std::function<void()> gone);

 private:
  using Code = boost::system::error_code;

  void watch();  // for the next request, or for the client to leave
  void on_readable(Code error);
  void read_header();
  void on_header(Code error);
  void read_body();
  void on_body(Code error);
  HttpRequest head() const;
  void read_failed(Code error);

  void answer(const HttpResponse& response);
  void queue(std::string bytes);
  void write_next();
  void answered();
  void linger();  // the client may still be writing: reads on for a moment, lest it sees a reset
  void gone();
  void too_long();

  void arm(boost::asio::steady_timer& timer, std::chrono::seconds after,
           void (HttpConnection::*then)());
  static void disarm(boost::asio::steady_timer& timer);
  void time_out();
  std::string header_text(const HttpResponse& response, bool stream) const;
  template <class Work>
  void on_thread(uint64_t number, Work work);

  Socket socket_;
  std::shared_ptr<HttpShared> shared_;
  boost::asio::steady_timer timer_, answer_timer_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;

  bool watching_ = false, answering_ = false, timed_out_ = false, closed_ = false;
  bool keep_alive_ = true, chunked_ = false, head_only_ = false;
  uint64_t number_ = 0;                 // of the request
  bool began_ = false, ended_ = false;  // the answer's bytes
  std::deque<std::string> unsent_;
  size_t unsent_bytes_ = 0, written_ = 0;  // of the first piece
  bool writing_ = false;
  std::string discarded_;
  std::function<void()> on_gone_;
  bool is_gone_ = false;
};

}  // namespace dofla
