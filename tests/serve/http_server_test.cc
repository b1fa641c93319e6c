#include "dofla/serve/http_server.h"

#include <atomic>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/serve/http_client.h"
#include "tests/support/expect_error.h"

namespace dofla {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::StartsWith;

using test::Client;

const std::string kGet = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

class HttpServerTest : public testing::Test {
 protected:
  // Answers with the request's body, or as `handle` says.
  HttpServer& start(HttpLimits limits = {},
                    std::function<void(HttpRequest, HttpReply)> handle = {}) {
    HttpOptions options;
    options.port = 0;
    options.limits = limits;
    HttpHandlers handlers;
    handlers.gate = [](const HttpRequest& request) -> std::optional<HttpResponse> {
      if (request.path != "/closed") return std::nullopt;
      return HttpResponse{.status = 401, .body = "closed"};
    };
    handlers.handle = handle ? handle : [](const HttpRequest& request, const HttpReply& reply) {
      reply.send(
          {.body = request.method + request.path + "?" + request.query + ":" + request.body});
    };
    handlers.error = [](int status, const std::string& message) {
      return HttpResponse{.status = status, .body = "{" + message + "}"};
    };
    server = std::make_unique<HttpServer>(options, handlers);
    return *server;
  }
  std::string ask(const std::string& text, const std::string& end = "") const {
    const Client client(server->port());
    client.send(text);
    return client.receive(end);
  }

  std::unique_ptr<HttpServer> server;
};

TEST_F(HttpServerTest, AnswersOneRequestAfterAnotherOnAConnection) {
  const Client client(start().port());
  client.send("POST /a?b=c HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nxyz");
  EXPECT_THAT(client.receive("xyz"), StartsWith("HTTP/1.1 200 OK\r\n"));
  client.send(kGet);
  EXPECT_THAT(client.receive("GET/?:"), HasSubstr("Content-Length: 6\r\n"));
  // Several at once are answered in their order.
  client.send(
      "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  const std::string both = client.receive();
  EXPECT_LT(both.find("GET/1?:"), both.find("GET/2?:"));
}

TEST_F(HttpServerTest, OlderClientsAndHeadRequests) {
  start();
  EXPECT_THAT(ask("GET / HTTP/1.0\r\n\r\n"), HasSubstr("Connection: close"));
  EXPECT_THAT(ask("HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
              testing::EndsWith("\r\n\r\n"));
  EXPECT_THAT(ask("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n",
                  "Continue\r\n\r\n"),
              StartsWith("HTTP/1.1 100 "));
}

TEST_F(HttpServerTest, WhatIsTooLongHasItsStatus) {
  HttpLimits limits;
  limits.header_bytes = 1000;
  limits.body_bytes = 100;
  start(limits);
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
  EXPECT_THAT(ask(post + "X: " + std::string(5000, 'x') + "\r\n\r\n"), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(ask("GET /" + std::string(200000, 'x')), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(ask(post + "Content-Length: 101\r\n\r\n"), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(ask(post + "Content-Length: 99999999999999\r\n\r\n"), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(ask(post + "Transfer-Encoding: chunked\r\n\r\nff\r\n" + std::string(300, 'x')),
              StartsWith("HTTP/1.1 413 "));
  // A body that nobody reads does not take the answer away.
  const std::string refused = ask(
      "POST /closed HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n" + std::string(100, 'x'));
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(refused, HasSubstr("closed"));
}

TEST_F(HttpServerTest, WhatIsNoRequestIsRefused) {
  start();
  for (const char* text :
       {"nonsense\r\n\r\n", "GET\r\n\r\n", "\x16\x03\x01\x02\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"})
    EXPECT_THAT(ask(text), StartsWith("HTTP/1.1 400 ")) << text;
}

TEST_F(HttpServerTest, SlowClientsAreLetGo) {
  HttpLimits limits;
  limits.header_time = limits.body_time = limits.idle_time = 1s;
  start(limits);
  const Client silent(server->port()), header(server->port()), body(server->port()),
      idle(server->port());
  header.send("GET / HTTP/1.1\r\nHost:");
  body.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nxyz");
  idle.send(kGet);
  EXPECT_EQ(silent.receive(), "");
  EXPECT_THAT(header.receive(), StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(body.receive(), StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(idle.receive(), StartsWith("HTTP/1.1 200 "));  // and is closed
}

TEST_F(HttpServerTest, ManyHalfOpenConnectionsHoldNobody) {
  start();
  std::vector<std::unique_ptr<Client>> open;
  for (int i = 0; i < 300; ++i) {
    open.push_back(std::make_unique<Client>(server->port()));
    open.back()->send("POST / HTTP/1.1\r\nHost: a\r\nContent-Le");
  }
  EXPECT_THAT(ask(kGet, "GET/?:"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpServerTest, MoreClientsThanMayBeAreTurnedAway) {
  HttpLimits limits;
  limits.connections = 2;
  start(limits);
  const Client first(server->port()), second(server->port());
  first.send(kGet);
  first.receive("GET/?:");
  second.send(kGet);
  second.receive("GET/?:");
  EXPECT_THAT(ask(kGet), StartsWith("HTTP/1.1 503 "));
}

TEST_F(HttpServerTest, StreamsInChunks) {
  start({}, [](const HttpRequest&, const HttpReply& reply) {
    reply.begin_stream({.body = "", .type = "text/event-stream"});
    reply.write("one");
    reply.write("");
    reply.write("twotwotwotwotwotwo");
    reply.end();
    reply.write("late");
    reply.send({.body = "late"});
  });
  const std::string answer = ask("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(answer,
              testing::EndsWith("\r\n\r\n3\r\none\r\n12\r\ntwotwotwotwotwotwo\r\n0\r\n\r\n"));
  EXPECT_THAT(ask("GET / HTTP/1.0\r\n\r\n"), testing::EndsWith("\r\n\r\nonetwotwotwotwotwotwo"));
}

TEST_F(HttpServerTest, AClientThatLeavesIsNoticed) {
  std::promise<void> began, gone;
  start({}, [&](const HttpRequest&, const HttpReply& reply) {
    reply.on_gone([&] { gone.set_value(); });
    began.set_value();
  });
  Client client(server->port());
  client.send(kGet);
  began.get_future().wait();
  client.close();
  EXPECT_EQ(gone.get_future().wait_for(30s), std::future_status::ready);
}

TEST_F(HttpServerTest, AClientThatReadsTooSlowlyIsLetGo) {
  std::atomic<bool> gone = false;
  std::promise<size_t> written;
  start({}, [&](const HttpRequest&, const HttpReply& reply) {
    reply.on_gone([&] { gone = true; });
    reply.begin_stream({});
    size_t pieces = 0;
    for (; !gone && pieces < 100000; ++pieces) {
      reply.write(std::string(10000, 'x'));
      std::this_thread::sleep_for(10us);
    }
    written.set_value(pieces);
  });
  const Client client(server->port());
  client.send(kGet);
  EXPECT_LT(written.get_future().get(), 100000U);  // far less than all of it was kept
  EXPECT_TRUE(gone);
}

TEST_F(HttpServerTest, AnAnswerThatTakesTooLongIsGivenUp) {
  HttpLimits limits;
  limits.answer_time = 1s;
  std::promise<void> gone;
  start(limits, [&](const HttpRequest&, const HttpReply& reply) {
    reply.on_gone([&] { gone.set_value(); });
  });
  EXPECT_THAT(ask(kGet), StartsWith("HTTP/1.1 504 "));
  EXPECT_EQ(gone.get_future().wait_for(30s), std::future_status::ready);
}

TEST_F(HttpServerTest, WhatIsUnderWayIsAnsweredBeforeTheEnd) {
  std::promise<HttpReply> asked;
  start({}, [&](const HttpRequest&, const HttpReply& reply) { asked.set_value(reply); });
  const Client idle(server->port()), client(server->port());
  client.send(kGet);
  const HttpReply reply = asked.get_future().get();
  server->stop_accepting();
  EXPECT_EQ(idle.receive(), "");
  reply.send({.body = "done"});
  EXPECT_THAT(client.receive(), testing::EndsWith("done"));
  EXPECT_TRUE(server->wait_until_idle(30s));
}

TEST_F(HttpServerTest, TwoCannotListenAtOnePlace) {
  HttpOptions options;
  options.port = start().port();
  test::expect_error([&] { HttpServer(options, {}); }, {"cannot listen"});
  options.host = "no address";
  test::expect_error([&] { HttpServer(options, {}); }, {"host no address"});
}

}  // namespace
}  // namespace dofla
