#include "dofla/serve/http_server.h"

#include <atomic>
#include <thread>
#include <unordered_map>

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>

#include "dofla/core/error.h"
#include "dofla/serve/http_connection.h"

namespace dofla {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// Clients that are told to come back later, beside the others.
constexpr size_t kTurnedAway = 64;

asio::ip::address address_of(const std::string& text) {
  boost::system::error_code error;
  asio::ip::address address =
      asio::ip::make_address(text == "localhost" ? "127.0.0.1" : text, error);
  if (error) fail("host {}: expected an address such as 127.0.0.1, 0.0.0.0 or ::1", text);
  return address;
}

}  // namespace

bool is_loopback(const std::string& address) {
  return address_of(address).is_loopback();
}

struct HttpServer::Impl {
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::steady_timer pause{io};
  std::shared_ptr<HttpShared> shared = std::make_shared<HttpShared>();
  asio::thread_pool workers;
  std::unordered_map<HttpConnection*, std::shared_ptr<HttpConnection>> connections;  // open ones
  std::atomic<int64_t> open = 0;
  uint16_t port = 0;
  std::thread thread;

  explicit Impl(const HttpOptions& options) : workers(static_cast<size_t>(options.workers)) {}

  void listen(const HttpOptions& options) {
    const tcp::endpoint endpoint(address_of(options.host), options.port);
    try {
      acceptor.open(endpoint.protocol());
      acceptor.set_option(tcp::acceptor::reuse_address(true));
      acceptor.bind(endpoint);
      acceptor.listen();
      port = acceptor.local_endpoint().port();
    } catch (const boost::system::system_error& error) {
      fail("{}:{}: cannot listen there: {}; choose another port or host", options.host,
           options.port, error.code().message());
    }
  }

  void accept() {
    acceptor.async_accept([this](boost::system::error_code error, tcp::socket socket) {
      if (!acceptor.is_open()) return;
      if (error) {  // too many open files, most likely: some will close
        pause.expires_after(std::chrono::milliseconds(100));
        return pause.async_wait([this](boost::system::error_code) { accept(); });
      }
      welcome(std::move(socket));
      accept();
    });
  }

  void welcome(tcp::socket socket) {
    const size_t limit = shared->limits.connections;
    if (connections.size() >= limit + kTurnedAway) return;  // closes it
    const auto connection = std::make_shared<HttpConnection>(std::move(socket), shared);
    connections.emplace(connection.get(), connection);
    ++open;
    if (connections.size() > limit) {
      connection->refuse(503, fmt::format("{} clients are connected, as many as may be", limit));
    } else {
      connection->start();
    }
  }

  template <class Do>
  void each(const Do& act) {
    std::vector<std::shared_ptr<HttpConnection>> alive;
    for (const auto& [key, connection] : connections) alive.push_back(connection);
    for (const auto& one : alive) act(*one);
  }
};

HttpServer::HttpServer(const HttpOptions& options, HttpHandlers handlers)
    : impl_(std::make_unique<Impl>(options)) {
  Impl& impl = *impl_;
  impl.shared->limits = options.limits;
  impl.shared->handlers = std::move(handlers);
  impl.shared->post = [&impl](std::function<void()> work) {
    asio::post(impl.workers, std::move(work));
  };
  impl.shared->closed = [&impl](HttpConnection* connection) {
    impl.open -= static_cast<int64_t>(impl.connections.erase(connection));
  };
  impl.listen(options);
  impl.accept();
  impl.thread = std::thread([&impl] { impl.io.run(); });
}

HttpServer::~HttpServer() {
  Impl& impl = *impl_;
  stop_accepting();
  close_all();
  impl.workers.join();  // what runs there ends; connections are closed, and run() then returns
  impl.thread.join();
}

uint16_t HttpServer::port() const {
  return impl_->port;
}

int64_t HttpServer::connections() const {
  return impl_->open;
}

void HttpServer::post(std::function<void()> work) {
  impl_->shared->post(std::move(work));
}

void HttpServer::stop_accepting() {
  Impl& impl = *impl_;
  impl.shared->stopping = true;
  asio::post(impl.io, [&impl] {
    boost::system::error_code ignored;
    impl.acceptor.close(ignored);
    impl.pause.cancel();
    impl.each([](HttpConnection& connection) { connection.close_if_idle(); });
  });
}

void HttpServer::close_all() {
  Impl& impl = *impl_;
  asio::post(impl.io,
             [&impl] { impl.each([](HttpConnection& connection) { connection.close(); }); });
}

bool HttpServer::wait_until_idle(std::chrono::seconds most) {
  const auto until = std::chrono::steady_clock::now() + most;
  while (impl_->open > 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return impl_->open == 0;
}

HttpReply::HttpReply(std::shared_ptr<HttpConnection> connection, uint64_t number)
    : connection_(std::move(connection)), number_(number) {}

void HttpReply::send(HttpResponse response) const {
  connection_->send(number_, std::move(response));
}

void HttpReply::begin_stream(HttpResponse head) const {
  connection_->begin_stream(number_, std::move(head));
}

void HttpReply::write(std::string piece) const {
  connection_->write(number_, std::move(piece));
}

void HttpReply::end() const {
  connection_->end(number_);
}

void HttpReply::on_gone(std::function<void()> gone) const {
  connection_->on_gone(number_, std::move(gone));
}

}  // namespace dofla
