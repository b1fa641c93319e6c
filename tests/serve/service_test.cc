#include "dofla/serve/service.h"

#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/generate/generate.h"
#include "dofla/linear/linear_model.h"
#include "tests/serve/http_client.h"

namespace dofla {
namespace {

const fs::path kFolder = fs::path(DOFLA_SOURCE_DIR) / "tests/models/stories260K";

class ServiceTest : public testing::Test {
 protected:
  ServiceTest() {
    ServiceOptions options;
    options.http.port = 0;
    const auto turn = std::make_shared<Turn>();
    for (const char* id : {"one", "two"}) {
      ServedModelOptions each = {.id = id, .chat_template = "zephyr"};
      each.engine.turn = turn;
      models.push_back(std::make_shared<ServedModel>(kFolder, each));
    }
    service = std::make_unique<Service>(models, options);
  }

  static std::string post(const Json& body) {
    const std::string text = body.dump();
    return fmt::format(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        "Content-Length: {}\r\n\r\n{}",
        text.size(), text);
  }

  // The text of a stream of events.
  static std::string streamed_text(const std::string& answer) {
    std::string text;
    for (size_t at = answer.find("data: {"); at != answer.npos;
         at = answer.find("data: {", at + 1)) {
      const size_t end = answer.find("\n\n", at);
      const Json event = Json::parse(answer.substr(at + 6, end - at - 6));
      for (const Json& choice : event.at("choices")) text += choice.at("text").get<std::string>();
    }
    return text;
  }

  std::vector<std::shared_ptr<ServedModel>> models;
  std::unique_ptr<Service> service;
};

TEST_F(ServiceTest, ManyStreamsAtOnceAreThoseOfGenerate) {
  constexpr uint64_t kSeeds = 6;
  const Tokenizer tokenizer = Tokenizer::load(kFolder);
  const Transformer model = load_model(Checkpoint(kFolder));
  const TokenIds prompt = tokenizer.encode("Once upon a time");
  std::vector<std::string> wanted;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    StreamDecoder decoder(tokenizer);
    for (const int64_t id : prompt) decoder.next(id);
    GenerateOptions options;
    options.max_tokens = 24;
    options.sampler = {.temperature = 1, .top_k = 0, .top_p = 0.9, .seed = seed};
    std::string& text = wanted.emplace_back();
    for (const int64_t id : generate(model, prompt, options).ids)
      if (id != model.config().end_of_text) text += decoder.next(id);
    text += decoder.finish();
  }
  const auto request = [&](uint64_t seed) {
    return post({{"prompt", "Once upon a time"},
                 {"seed", seed},
                 {"max_tokens", 24},
                 {"top_p", 0.9},
                 {"stream", true},
                 {"model", seed % 2 == 0 ? "one" : "two"}});
  };
  std::atomic<int> right = 0;
  std::vector<std::thread> clients;
  for (uint64_t seed = 0; seed < kSeeds; ++seed)
    clients.emplace_back([&, seed] {
      {  // one that leaves as soon as something has come
        const test::Client client(service->port());
        client.send(request(seed));
        client.receive("data: ");
      }
      const test::Client client(service->port());
      client.send(request(seed));
      if (streamed_text(client.receive()) == wanted[seed]) ++right;
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, static_cast<int>(kSeeds));
}

TEST_F(ServiceTest, EndsInTheMidstOfAnswers) {
  const test::Client client(service->port());
  client.send(
      post({{"prompt", "Once"}, {"max_tokens", 400}, {"stream", true}, {"ignore_eos", true}}));
  client.receive("data: ");
  service.reset();  // neither waits for the answer nor leaves anything behind
  EXPECT_EQ(models[0]->engine().metrics().running, 0);
}

TEST_F(ServiceTest, DrainingAnswersWhatIsUnderWay) {
  const test::Client client(service->port());
  client.send(post({{"prompt", "Once"},
                    {"max_tokens", 200},
                    {"temperature", 0},
                    {"stream", true},
                    {"ignore_eos", true}}));
  client.receive("data: ");
  service->drain();
  EXPECT_THAT(client.receive(), testing::HasSubstr("data: [DONE]"));
}

TEST(Service, OtherMachinesNeedAKey) {
  ServiceOptions options;
  options.http.host = "0.0.0.0";
  const auto model = std::make_shared<ServedModel>(kFolder, ServedModelOptions{.id = "one"});
  EXPECT_THROW(Service({model}, options), std::invalid_argument);
}

TEST(Service, EscapesInPathsAreRead) {
  EXPECT_EQ(percent_decoded("a%2Fb%20c"), "a/b c");
  EXPECT_EQ(percent_decoded("100%"), "100%");
  EXPECT_EQ(percent_decoded("%zz%4"), "%zz%4");
  EXPECT_EQ(percent_decoded("%41%"), "A%");
}

}  // namespace
}  // namespace dofla
