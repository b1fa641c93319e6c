#include "dofla/checkpoint/same_vocabulary.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

// Copies of a small model, whose tokenizer and configuration are changed.
class SameVocabulary : public testing::Test {
 protected:
  fs::path copy_of_model(const std::string& name) const {
    const fs::path folder = scratch.path() / name;
    fs::copy(test::tests_folder() / "models/stories260K", folder);
    return folder;
  }
  // The tokenizer with two tokens exchanged, 300 and 301.
  static void exchange_tokens(const fs::path& folder) {
    Json tokenizer = load_json(folder / "tokenizer.json");
    for (auto& [token, id] : tokenizer["model"]["vocab"].items())
      if (id == 300 || id == 301) id = 601 - id.get<int>();
    write_whole(folder / "tokenizer.json", tokenizer.dump());
  }

  const test::ScratchFolder scratch;
  const fs::path teacher = copy_of_model("teacher"), student = copy_of_model("student");
};

TEST_F(SameVocabulary, OfACopyIsTheSame) {
  require_same_vocabulary(Checkpoint(student), Checkpoint(teacher));
  // However its file is written.
  write_whole(student / "tokenizer.json", load_json(student / "tokenizer.json").dump(1));
  require_same_vocabulary(Checkpoint(student), Checkpoint(teacher));
}

TEST_F(SameVocabulary, AnotherTokenIsNamed) {
  exchange_tokens(student);
  test::expect_error([&] { require_same_vocabulary(Checkpoint(student), Checkpoint(teacher)); },
                     {"student: token 300 is", "teacher", "the tokens of its teacher"});
}

TEST_F(SameVocabulary, AnotherNumberOfTokensIsNamed) {
  const Checkpoint other(test::fixtures() / "gpt2");
  test::expect_error([&] { require_same_vocabulary(Checkpoint(student), other); },
                     {"student: a vocabulary of 512", "gpt2"});
}

// Models of numbers alone have nothing else to compare.
TEST_F(SameVocabulary, WithoutATokenizerTheNumberDecides) {
  exchange_tokens(student);
  fs::remove(teacher / "tokenizer.json");
  require_same_vocabulary(Checkpoint(student), Checkpoint(teacher));
}

}  // namespace
}  // namespace dofla
