#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/status.hpp>
#include <fmt/format.h>

#include "dofla/serve/http_connection.h"

namespace dofla {
namespace http = boost::beast::http;
namespace asio = boost::asio;

namespace {

constexpr size_t kWriteBytes = size_t{64} << 10;
constexpr std::chrono::seconds kLinger{2};

}  // namespace

std::string HttpConnection::header_text(const HttpResponse& response, bool stream) const {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", response.status,
                                std::string(http::obsolete_reason(
                                    http::int_to_status(static_cast<unsigned>(response.status)))),
                                response.type);
  for (const auto& [name, value] : response.fields) out += fmt::format("{}: {}\r\n", name, value);
  if (!stream) {
    out += fmt::format("Content-Length: {}\r\n", response.body.size());
  } else if (chunked_) {
    out += "Transfer-Encoding: chunked\r\n";
  }
  const bool goes_on = keep_alive_ && !shared_->stopping && (!stream || chunked_);
  out += fmt::format("X-Content-Type-Options: nosniff\r\nConnection: {}\r\n\r\n",
                     goes_on ? "keep-alive" : "close");
  return out;
}

// Work for an answer, from any thread: nothing if that answer has ended.
template <class Work>
void HttpConnection::on_thread(uint64_t number, Work work) {
  asio::post(socket_.get_executor(),
             [self = shared_from_this(), number, work = std::move(work)]() mutable {
               if (!self->closed_ && self->answering_ && number == self->number_) work(*self);
             });
}

void HttpConnection::answer(const HttpResponse& response) {
  if (began_) return;
  began_ = ended_ = true;
  queue(header_text(response, false) + (head_only_ ? "" : response.body));
}

void HttpConnection::send(uint64_t number, HttpResponse response) {
  on_thread(number,
            [response = std::move(response)](HttpConnection& self) { self.answer(response); });
}

void HttpConnection::begin_stream(uint64_t number, HttpResponse head) {
  on_thread(number, [head = std::move(head)](HttpConnection& self) {
    if (self.began_) return;
    self.began_ = true;
    if (!self.chunked_) self.keep_alive_ = false;  // the end of the connection is that of the body
    self.queue(self.header_text(head, true));
  });
}

void HttpConnection::write(uint64_t number, std::string piece) {
  if (piece.empty()) return;
  on_thread(number, [piece = std::move(piece)](HttpConnection& self) mutable {
    if (!self.began_ || self.ended_) return;
    if (self.chunked_) piece = fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
    // A client that reads too slowly is let go rather than waited for.
    if (self.unsent_bytes_ + piece.size() > self.shared_->limits.unsent_bytes) return self.close();
    self.queue(std::move(piece));
  });
}

void HttpConnection::end(uint64_t number) {
  on_thread(number, [](HttpConnection& self) {
    if (!self.began_ || self.ended_) return;
    self.ended_ = true;
    self.queue(self.chunked_ ? "0\r\n\r\n" : "");
  });
}

void HttpConnection::on_gone(uint64_t number, std::function<void()> call) {
  asio::post(socket_.get_executor(),
             [self = shared_from_this(), number, call = std::move(call)]() mutable {
               const bool current = self->answering_ && number == self->number_;
               if (self->closed_ || !current || self->is_gone_) {
                 self->shared_->post(std::move(call));
               } else if (!self->ended_) {
                 self->on_gone_ = std::move(call);
               }
             });
}

void HttpConnection::gone() {
  is_gone_ = true;
  if (on_gone_ && !ended_) shared_->post(std::move(on_gone_));
  on_gone_ = nullptr;
}

void HttpConnection::too_long() {
  gone();
  if (began_) return close();
  keep_alive_ = false;
  answer(shared_->handlers.error(504, "the answer took too long"));
}

void HttpConnection::queue(std::string bytes) {
  unsent_bytes_ += bytes.size();
  if (!bytes.empty()) unsent_.push_back(std::move(bytes));
  if (!writing_) write_next();
}

void HttpConnection::write_next() {
  if (closed_) return;
  if (unsent_.empty()) {
    disarm(timer_);
    if (ended_) answered();
    return;
  }
  writing_ = true;
  arm(timer_, shared_->limits.write_time, &HttpConnection::close);
  const std::string& front = unsent_.front();
  const size_t bytes = std::min(front.size() - written_, kWriteBytes);
  asio::async_write(socket_, asio::buffer(front.data() + written_, bytes),
                    [self = shared_from_this(), bytes](Code error, size_t) {
                      self->writing_ = false;
                      if (self->closed_) return;
                      if (error) return self->close();
                      self->unsent_bytes_ -= bytes;
                      self->written_ += bytes;
                      if (self->written_ == self->unsent_.front().size()) {
                        self->unsent_.pop_front();
                        self->written_ = 0;
                      }
                      self->write_next();
                    });
}

void HttpConnection::answered() {
  answering_ = began_ = ended_ = false;
  disarm(answer_timer_);
  on_gone_ = nullptr;
  parser_.reset();
  if (!keep_alive_ || shared_->stopping) return linger();
  if (buffer_.size() > 0) return read_header();
  arm(timer_, shared_->limits.idle_time, &HttpConnection::close);
  watch();
}

void HttpConnection::linger() {
  Code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  if (discarded_.empty()) {
    discarded_.resize(4096);
    arm(timer_, kLinger, &HttpConnection::close);
  }
  socket_.async_read_some(
      asio::buffer(discarded_),
      [self = shared_from_this()](Code error, size_t) { error ? self->close() : self->linger(); });
}

}  // namespace dofla
