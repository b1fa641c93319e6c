#include "dofla/data/tasks/task.h"

#include <cstdlib>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/task_files.h"

namespace dofla {
namespace {

using test::expect_error;
using testing::ElementsAre;

class TaskFiles : public testing::Test {
 protected:
  TaskFiles() { test::write_task_files(scratch.path()); }

  std::vector<Question> read(std::string_view name) const {
    const Task& task = find_task(name);
    return read_questions(task, find_split(task, task.evaluated), scratch.path());
  }

  // Replaces a file and expects its reader to refuse it.
  void expect_refused(const std::string& file, std::string_view contents,
                      std::string_view part) const {
    test::write_under(scratch.path(), file, contents);
    expect_error([&] { read(file.substr(0, file.find('/'))); }, {part});
  }

  const test::ScratchFolder scratch;
};

TEST_F(TaskFiles, Piqa) {
  const std::vector<Question> questions = read("piqa");
  ASSERT_EQ(questions.size(), 2u);
  EXPECT_EQ(questions[0].context(1), "Question: open a jar\nAnswer:");
  EXPECT_THAT(questions[0].continuations, ElementsAre("twist the lid", "eat the lid"));
  EXPECT_EQ(questions[0].gold, 0);
  EXPECT_EQ(questions[1].gold, 1);
}

TEST_F(TaskFiles, PiqaBroken) {
  expect_refused("piqa/valid-labels.lst", "0\n2\n",
                 "valid-labels.lst:2: expected the label 0 or 1");
  expect_refused("piqa/valid-labels.lst", "0\n",
                 "valid-labels.lst: expected one label for each of");
  expect_refused("piqa/valid-labels.lst", "0\n1\n0\n", "valid-labels.lst: expected one label");
  expect_refused("piqa/valid.jsonl", "{\"goal\": \"a\", \"sol1\": \"b\"}\n", "expected one label");
  test::write_under(scratch.path(), "piqa/valid-labels.lst", "0\n");
  expect_refused("piqa/valid.jsonl", "{\"goal\": \"a\", \"sol1\": \"b\"}\n",
                 "valid.jsonl:1: expected");
  expect_refused("piqa/valid.jsonl", "{\"goal\": \"a\", \"sol1\": \"b\", \"sol2\": \"\"}\n",
                 "valid.jsonl:1: \"sol2\" is empty");
  fs::remove(scratch.path() / "piqa/valid-labels.lst");
  expect_error([&] { read("piqa"); }, {"valid-labels.lst: cannot open"});
}

TEST_F(TaskFiles, Logiqa) {
  const std::vector<Question> questions = read("logiqa");
  ASSERT_EQ(questions.size(), 2u);
  EXPECT_THAT(questions[0].contexts,
              ElementsAre("Passage: All birds fly. A hen is a bird.\nQuestion: What follows?\n"
                          "Choices:\nA. Hens swim.\nB. Hens fly\nC. Birds are hens\nD. None\n"
                          "Answer:"));
  EXPECT_EQ(questions[0].continuation(1), "Hens fly");
  EXPECT_EQ(questions[0].gold, 1);
  // Labels in another order or spelling; an answer without one.
  EXPECT_THAT(questions[1].continuations, ElementsAre("one", "two", "three", "City four"));
  EXPECT_EQ(questions[1].gold, 3);
}

// The options in their order, and with the first ones moved to the end.
TEST_F(TaskFiles, OptionsAreShownBehindLettersInAnyRotation) {
  const Question logiqa = read("logiqa")[0], mmlu = read("mmlu")[0], arc = read("arc_easy")[0];
  EXPECT_EQ(lettered(logiqa).contexts, logiqa.contexts);
  EXPECT_EQ(lettered(mmlu).contexts, mmlu.contexts);
  EXPECT_THAT(lettered(logiqa, 3).contexts,
              ElementsAre("Passage: All birds fly. A hen is a bird.\nQuestion: What follows?\n"
                          "Choices:\nA. None\nB. Hens swim.\nC. Hens fly\nD. Birds are hens\n"
                          "Answer:"));
  EXPECT_EQ(lettered(logiqa, 3).gold, 2);
  EXPECT_EQ(lettered(logiqa, 1).gold, 0);
  EXPECT_THAT(lettered(arc, 1).contexts,
              ElementsAre("Question: What is wet?\nA. sand\nB. air\nC. water\nAnswer:"));
  EXPECT_THAT(lettered(arc, 1).continuations, ElementsAre("A", "B", "C"));
  EXPECT_EQ(lettered(arc, 1).gold, 2);
  EXPECT_EQ(lettered(arc, 3).contexts, lettered(arc).contexts);
  for (const char* without : {"piqa", "winogrande", "wsc"})
    expect_error([&] { lettered(read(without)[0]); }, {"0 options cannot be asked by letters"});
  Question many = arc;
  many.options.assign(27, "x");
  expect_error([&] { lettered(many); }, {"27 options cannot be asked by letters"});
}

TEST_F(TaskFiles, LogiqaBroken) {
  const std::string file = "logiqa/Test.txt", good = "a\nP\nQ\nA.1\nB.2\nC.3\nD.4\n";
  expect_refused(file, "e\nP\nQ\nA.1\nB.2\nC.3\nD.4\n", "Test.txt:1: expected the right answer");
  expect_refused(file, good + "\nab\nP\nQ\nA.1\nB.2\nC.3\nD.4\n", "Test.txt:9: expected the right");
  expect_refused(file, good + "\n\na\nP\nQ\nA.1\nB.2\nC.3\n", "Test.txt:10: expected 7 lines");
  expect_refused(file, good + good, "Test.txt:1: expected 7 lines (answer, passage, question, 4");
  expect_refused(file, "a\nP\nQ\nA.1\nB.\nC.3\nD.4\n", "Test.txt:5: the answer is empty");
  expect_refused(file, "", "Test.txt: empty: no question");
  expect_refused(file, "\n\n \n", "Test.txt: empty: no question");
}

TEST_F(TaskFiles, Arc) {
  for (const char* name : {"arc_easy", "arc_challenge"}) {
    const std::vector<Question> questions = read(name);
    ASSERT_EQ(questions.size(), 2u);
    EXPECT_THAT(questions[0].contexts, ElementsAre("Question: What is wet?\nAnswer:"));
    EXPECT_THAT(questions[0].continuations, ElementsAre("water", "sand", "air"));
    EXPECT_EQ(questions[0].gold, 0);
    EXPECT_EQ(questions[1].gold, 1) << "labelled by numbers";
  }
}

TEST_F(TaskFiles, ArcBroken) {
  const auto with_choices = [](const std::string& choices, const std::string& key) {
    return R"({"question": {"stem": "s", "choices": )" + choices + R"(}, "answerKey": ")" + key +
           "\"}";
  };
  const std::string file = "arc_easy/ARC-Easy-Test.jsonl";
  const std::string two = R"([{"text": "a", "label": "A"}, {"text": "b", "label": "B"}])";
  expect_refused(file, with_choices(two, "C"), "Test.jsonl:1: \"answerKey\" \"C\" is none of");
  expect_refused(file, with_choices("[]", "A"), "expected \"choices\"");
  expect_refused(file, with_choices("{}", "A"), "expected \"choices\"");
  expect_refused(file, with_choices("[1, 2]", "A"), "expected a choice");
  expect_refused(file, with_choices(R"([{"text": "a"}, {"text": "b"}])", "A"), "text \"label\"");
  expect_refused(file, R"({"answerKey": "A"})", "expected an object \"question\", found none");
  expect_refused(file, R"({"question": {"choices": )" + two + "}}", "expected a text \"stem\"");
}

TEST_F(TaskFiles, Winogrande) {
  const std::vector<Question> questions = read("winogrande");
  ASSERT_EQ(questions.size(), 2u);
  EXPECT_THAT(questions[0].contexts, ElementsAre("The cup did not fit the bag as the cup",
                                                 "The cup did not fit the bag as the bag"));
  EXPECT_EQ(questions[0].candidates(), 2u);
  EXPECT_EQ(questions[0].continuation(1), "was too big.");
  EXPECT_EQ(questions[0].gold, 0);
  EXPECT_THAT(questions[1].contexts, ElementsAre("Ann", "Bob"));
  EXPECT_EQ(questions[1].gold, 1);
}

TEST_F(TaskFiles, WinograndeBroken) {
  const auto with = [](const std::string& sentence, const std::string& answer) {
    return R"({"sentence": ")" + sentence + R"(", "option1": "a", "option2": "b", "answer": )" +
           answer + "}";
  };
  const std::string file = "winogrande/dev.jsonl";
  expect_refused(file, with("no gap", "\"1\""), "dev.jsonl:1: expected a \"sentence\" with a gap");
  expect_refused(file, with("ends in _ ", "\"1\""), "nothing follows the gap");
  expect_refused(file, with("a _ b", "\"3\""),
                 "expected the \"answer\" \"1\" or \"2\", found \"3\"");
  expect_refused(file, with("a _ b", "1"), "expected a text \"answer\", found 1");
}

TEST_F(TaskFiles, Wsc) {
  const std::vector<Question> questions = read("wsc");
  ASSERT_EQ(questions.size(), 2u);
  EXPECT_THAT(questions[0].contexts,
              ElementsAre("Passage: Ann (a cook) thanked Bea, because *she* didn't\"win\".\n"
                          "Question: In the passage above, does the pronoun \"*she*\" refer to "
                          "\"*Ann*\"?\nAnswer:"));
  EXPECT_THAT(questions[0].continuations, ElementsAre("no", "yes"));
  EXPECT_EQ(questions[0].gold, 1);
  // The index is one too small: the nearest "it" is meant, not the first.
  EXPECT_THAT(questions[1].context(0), testing::StartsWith("Passage: Put it in the box and shut "
                                                           "*it*.\n"));
  EXPECT_EQ(questions[1].gold, 0);
}

TEST_F(TaskFiles, WscBroken) {
  const auto with = [](const std::string& index, const std::string& pronoun,
                       const std::string& label) {
    return R"({"text": "he ran", "target": {"span2_index": )" + index +
           R"(, "span1_text": "x", "span2_text": ")" + pronoun + R"("}, "label": )" + label + "}";
  };
  const std::string file = "wsc/val.jsonl";
  expect_refused(file, with("0", "she", "true"), "val.jsonl:1: no word of \"text\" begins with");
  expect_refused(file, with("-1", "he", "true"), "expected \"span2_index\"");
  expect_refused(file, with("1e30", "he", "true"), "expected \"span2_index\"");
  expect_refused(file, with("18446744073709551615", "he", "true"), "expected \"span2_index\"");
  expect_refused(file, with("0", "he", "2"), "expected a \"label\", true or false");
  expect_refused(file, R"({"text": "he ran", "label": true})", "expected an object \"target\"");
}

TEST_F(TaskFiles, Mmlu) {
  const std::vector<Question> questions = read("mmlu");
  ASSERT_EQ(questions.size(), 2u) << "of all subjects, in the order of their names";
  EXPECT_THAT(questions[0].contexts,
              ElementsAre("The following are multiple choice questions (with answers) about "
                          "anatomy.\n\nHow many ribs?\nA. 12\nB. 24\nC. 36\nD. 48\nAnswer:"));
  EXPECT_THAT(questions[0].continuations, ElementsAre("A", "B", "C", "D"));
  EXPECT_EQ(questions[0].gold, 1);
  EXPECT_THAT(questions[1].contexts,
              ElementsAre("The following are multiple choice questions (with answers) about world "
                          "history.\n\nWhen was\nit?\nA. 1\nB. 2, or 3\nC. \"4\"\nD. 5\nAnswer:"));
}

TEST_F(TaskFiles, MmluBroken) {
  const std::string file = "mmlu/test/anatomy_test.csv";
  expect_refused(file, "q,1,2,3,4,A\nq,1,2,3,B\n", "anatomy_test.csv:2: expected 6 fields");
  expect_refused(file, "q,1,2,3,4,E\n", "anatomy_test.csv:1: expected the answer A, B, C or D");
  expect_refused(file, "q,1,2,3,4,AB\n", "expected the answer A, B, C or D, found \"AB\"");
  expect_refused(file, "q,1,,3,4,A\n", "anatomy_test.csv:1: a field is empty");
  fs::remove_all(scratch.path() / "mmlu/test");
  expect_refused("mmlu/test", "", "test: expected a folder of .csv files");
  fs::remove(scratch.path() / "mmlu/test");
  fs::create_directory(scratch.path() / "mmlu/test");
  expect_error([&] { read("mmlu"); }, {"test: empty: no question"});
}

TEST_F(TaskFiles, TheFolderMayBeTheTasksOwn) {
  const Task& task = find_task("wsc");
  const TaskSplit& split = find_split(task, "validation");
  EXPECT_EQ(read_questions(task, split, scratch.path() / "wsc").size(), 2u);
}

TEST_F(TaskFiles, WhatIsMissingIsNamed) {
  const Task& task = find_task("wsc");
  expect_error([&] { read_questions(task, find_split(task, "train"), scratch.path()); },
               {"wsc/train.jsonl: missing; the train questions of wsc are read from it"});
  expect_error([&] { read_questions(task, find_split(task, "train"), scratch.path() / "none"); },
               {"none: no such folder"});
  expect_error([&] { find_split(task, "test"); },
               {"test: no such split of wsc; there are train, validation"});
  expect_error([&] { find_task("pica"); },
               {"pica: no such task; there are piqa, logiqa, arc_easy, arc_challenge, winogrande, "
                "wsc, mmlu"});
}

TEST(Tasks, NameSplitsThatTheyHave) {
  for (const Task& task : tasks()) {
    EXPECT_NO_THROW(find_split(task, task.evaluated)) << task.name;
    EXPECT_NO_THROW(find_split(task, task.trained)) << task.name;
    EXPECT_NE(task.evaluated, task.trained) << task.name;
  }
}

// The published files, under the folder in DOFLA_TASKS.
TEST(Tasks, PublishedFilesHaveTheirPublishedSizes) {
  const char* data = std::getenv("DOFLA_TASKS");
  if (data == nullptr) GTEST_SKIP() << "DOFLA_TASKS does not name the folder of the tasks";
  const std::map<std::string, size_t> sizes = {
      {"piqa", 1838},       {"logiqa", 651}, {"arc_easy", 2376}, {"arc_challenge", 1172},
      {"winogrande", 1267}, {"wsc", 104},    {"mmlu", 14042}};
  for (const Task& task : tasks()) {
    const auto evaluated = read_questions(task, find_split(task, task.evaluated), data);
    const auto trained = read_questions(task, find_split(task, task.trained), data);
    EXPECT_EQ(evaluated.size(), sizes.at(task.name)) << task.name;
    EXPECT_GT(trained.size(), 500u) << task.name;
    for (const auto* questions : {&evaluated, &trained})
      for (const Question& question : *questions) {
        ASSERT_GE(question.candidates(), 2u) << task.name;
        ASSERT_GE(question.gold, 0) << task.name;
        ASSERT_LT(static_cast<size_t>(question.gold), question.candidates()) << task.name;
      }
  }
}

}  // namespace
}  // namespace dofla
