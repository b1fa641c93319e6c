#include "dofla/serve/access.h"

#include <gtest/gtest.h>

#include "dofla/serve/api_error.h"

namespace dofla {
namespace {

// 200 where a request goes through.
int status(const HttpRequest& request, const std::string& key) {
  try {
    require_access(request, key);
    return 200;
  } catch (const ApiError& error) {
    return error.status();
  }
}

HttpRequest request_to(const std::string& host) {
  HttpRequest request;
  request.path = "/v1/models";
  request.host = host;
  return request;
}

TEST(Access, WithoutAKeyOnlyThisMachineIsAnswered) {
  for (const char* host : {"localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080"})
    EXPECT_EQ(status(request_to(host), ""), 200) << host;
  for (const char* host : {"", "evil.com", "evil.com:8080", "localhost.evil.com",
                           "127.0.0.1.evil.com", "[::2]:80", "127.0.0.2"})
    EXPECT_EQ(status(request_to(host), ""), 403) << host;
}

TEST(Access, WithoutAKeyPagesFromElsewhereAreRefused) {
  HttpRequest request = request_to("localhost:8080");
  request.origin = "http://localhost:8080";
  request.fetch_site = "same-origin";
  EXPECT_EQ(status(request, ""), 200);
  for (const char* origin :
       {"http://evil.com", "http://localhost:3000", "null", "https://localhost:8080"}) {
    request.origin = origin;
    EXPECT_EQ(status(request, ""), 403) << origin;
  }
  request.origin = "";
  request.fetch_site = "cross-site";
  EXPECT_EQ(status(request, ""), 403);
}

TEST(Access, AKeyOpensFromEverywhereAndNothingElseDoes) {
  HttpRequest request = request_to("example.org");
  EXPECT_EQ(status(request, "secret"), 401);
  for (const char* wrong : {"secret", "Bearer", "Bearer ", "Bearer Secret", "Bearer secre",
                            "Bearer secrets", "Bearer secretsecret", "Basic secret"}) {
    request.authorization = wrong;
    EXPECT_EQ(status(request, "secret"), 401) << wrong;
  }
  request.authorization = "Bearer secret";
  EXPECT_EQ(status(request, "secret"), 200);
  for (const char* open : {"/", "/page.js", "/page.css", "/health"}) {
    request.authorization = "";
    request.path = open;
    EXPECT_EQ(status(request, "secret"), 200) << open;
  }
}

}  // namespace
}  // namespace dofla
