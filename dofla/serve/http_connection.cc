#include "dofla/serve/http_connection.h"

#include <cerrno>
#include <utility>

#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <fmt/format.h>
#include <sys/socket.h>

namespace dofla {
namespace http = boost::beast::http;
namespace asio = boost::asio;

namespace {

constexpr size_t kReadBytes = size_t{64} << 10;

std::string text_of(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace

HttpConnection::HttpConnection(Socket socket, std::shared_ptr<HttpShared> shared)
    : socket_(std::move(socket)),
      shared_(std::move(shared)),
      timer_(socket_.get_executor()),
      answer_timer_(socket_.get_executor()),
      buffer_(shared_->limits.header_bytes + kReadBytes) {
  Code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

void HttpConnection::arm(asio::steady_timer& timer, std::chrono::seconds after,
                         void (HttpConnection::*then)()) {
  timer.expires_after(after);
  timer.async_wait([self = shared_from_this(), &timer, then](Code error) {
    // The call may have been under way already when the timer was set anew.
    const bool due = timer.expiry() <= std::chrono::steady_clock::now();
    if (!error && due && !self->closed_) ((*self).*then)();
  });
}

void HttpConnection::disarm(asio::steady_timer& timer) {
  timer.expires_at(asio::steady_timer::time_point::max());
}

void HttpConnection::time_out() {
  timed_out_ = true;
  Code ignored;
  socket_.cancel(ignored);  // what is under way ends with an error
}

void HttpConnection::close() {
  if (closed_) return;
  if (answering_) gone();
  closed_ = true;
  disarm(timer_);
  disarm(answer_timer_);
  Code ignored;
  socket_.close(ignored);
  shared_->closed(this);
}

void HttpConnection::close_if_idle() {
  if (!answering_ && !parser_) close();
}

void HttpConnection::start() {
  arm(timer_, shared_->limits.header_time, &HttpConnection::close);
  watch();
}

void HttpConnection::refuse(int status, const std::string& message) {
  answering_ = true;
  keep_alive_ = false;
  answer(shared_->handlers.error(status, message));
}

void HttpConnection::watch() {
  if (watching_ || closed_) return;
  watching_ = true;
  socket_.async_wait(Socket::wait_read,
                     [self = shared_from_this()](Code error) { self->on_readable(error); });
}

void HttpConnection::on_readable(Code error) {
  watching_ = false;
  if (closed_) return;
  if (error) return close();
  if (!answering_) return read_header();
  char byte = 0;
  const ssize_t seen = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  // Bytes are the next request, which waits for its turn.
  if (seen == 0 || (seen < 0 && errno != EAGAIN && errno != EINTR)) close();
}

void HttpConnection::read_header() {
  timed_out_ = false;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(shared_->limits.header_bytes));
  parser_->body_limit(shared_->limits.body_bytes);
  arm(timer_, shared_->limits.header_time, &HttpConnection::time_out);
  http::async_read_header(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](Code error, size_t) { self->on_header(error); });
}

void HttpConnection::read_failed(Code error) {
  const HttpLimits& limits = shared_->limits;
  if (timed_out_) return refuse(408, "the request did not arrive in time");
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return refuse(431, fmt::format("the header has more than {} bytes", limits.header_bytes));
  if (error == http::error::body_limit)
    return refuse(413, fmt::format("the body has more than {} bytes", limits.body_bytes));
  const bool malformed =
      error.category() == http::make_error_code(http::error::end_of_stream).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message;
  if (malformed) return refuse(400, "not an HTTP request: " + error.message());
  close();
}

HttpRequest HttpConnection::head() const {
  const auto& message = parser_->get();
  HttpRequest out;
  out.method = text_of(message.method_string());
  const std::string target = text_of(message.target());
  const size_t question = target.find('?');
  out.path = target.substr(0, question);
  if (question != target.npos) out.query = target.substr(question + 1);
  out.host = text_of(message[http::field::host]);
  out.origin = text_of(message[http::field::origin]);
  out.fetch_site = text_of(message["Sec-Fetch-Site"]);
  out.authorization = text_of(message[http::field::authorization]);
  return out;
}

void HttpConnection::on_header(Code error) {
  if (closed_) return;
  if (error) return read_failed(error);
  const auto& message = parser_->get();
  keep_alive_ = message.keep_alive();
  chunked_ = message.version() >= 11;
  head_only_ = message.method() == http::verb::head;
  if (std::optional<HttpResponse> refusal = shared_->handlers.gate(head())) {
    answering_ = true;
    keep_alive_ = false;  // a body may follow that nobody will read
    return answer(*refusal);
  }
  const auto length = parser_->content_length();
  if (length && *length > shared_->limits.body_bytes) return read_failed(http::error::body_limit);
  if (shared_->stopping) return refuse(503, "the server is shutting down");
  if (!boost::beast::iequals(message[http::field::expect], "100-continue")) return read_body();
  static constexpr std::string_view kGoOn = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(socket_, asio::buffer(kGoOn.data(), kGoOn.size()),
                    [self = shared_from_this()](Code failed, size_t) {
                      failed ? self->close() : self->read_body();
                    });
}

void HttpConnection::read_body() {
  arm(timer_, shared_->limits.body_time, &HttpConnection::time_out);
  http::async_read(socket_, buffer_, *parser_,
                   [self = shared_from_this()](Code error, size_t) { self->on_body(error); });
}

void HttpConnection::on_body(Code error) {
  if (closed_) return;
  if (error) return read_failed(error);
  disarm(timer_);
  HttpRequest request = head();
  request.body = std::move(parser_->get().body());
  answering_ = true;
  is_gone_ = false;
  arm(answer_timer_, shared_->limits.answer_time, &HttpConnection::too_long);
  watch();
  shared_->post([shared = shared_, request = std::move(request),
                 reply = HttpReply(shared_from_this(), ++number_)]() mutable {
    shared->handlers.handle(std::move(request), reply);
  });
}

}  // namespace dofla
