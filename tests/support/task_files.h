// Small hand-made files in the formats of the tasks.
#pragma once

#include <fstream>
#include <string>
#include <string_view>

#include "dofla/core/file.h"

namespace dofla::test {

inline void write_under(const fs::path& folder, const fs::path& name, std::string_view contents) {
  fs::create_directories((folder / name).parent_path());
  std::ofstream(folder / name, std::ios::binary) << contents;
}

// Two questions or so of every task, each in its own folder, for the split that is evaluated.
inline void write_task_files(const fs::path& data) {
  write_under(data, "piqa/valid.jsonl",
              R"({"goal": "open a jar", "sol1": "twist the lid", "sol2": "eat the lid"}
{"goal": "dry a cup", "sol1": "fill it with rain", "sol2": "wipe it"}
)");
  write_under(data, "piqa/valid-labels.lst", "0\n1\n");
  write_under(data, "logiqa/Test.txt",
              "\nb\nAll birds fly.A hen is a bird.\nWhat follows?\nA.Hens swim.\nB.Hens fly\n"
              "C.Birds are hens\nD.None\n\nd\nP.\nQ?\nA one\nC?two\nB.three\nCity four\n");
  for (const std::string name : {"arc_easy/ARC-Easy", "arc_challenge/ARC-Challenge"})
    write_under(
        data, name + "-Test.jsonl",
        R"({"id": "1", "question": {"stem": "What is wet?", "choices": [{"text": "water", "label": "A"}, {"text": "sand", "label": "B"}, {"text": "air", "label": "C"}]}, "answerKey": "A"}
{"id": "2", "question": {"stem": "What is hot?", "choices": [{"text": "ice", "label": "1"}, {"text": "fire", "label": "2"}]}, "answerKey": "2"}
)");
  write_under(
      data, "winogrande/dev.jsonl",
      R"({"qID": "x-1", "sentence": "The cup did not fit the bag as the _ was too big.", "option1": "cup", "option2": "bag", "answer": "1"}
{"qID": "x-2", "sentence": "_ sings.", "option1": "Ann", "option2": "Bob", "answer": "2"}
)");
  write_under(
      data, "wsc/val.jsonl",
      R"({"text": "Ann ( a cook ) thanked Bea , because she did n't \" win \" .", "target": {"span2_index": 8, "span1_index": 0, "span1_text": "Ann", "span2_text": "she"}, "idx": 0, "label": true}
{"text": "Put it in the box and shut it.", "target": {"span2_index": 6, "span1_index": 4, "span1_text": "the box", "span2_text": "it"}, "idx": 1, "label": false}
)");
  write_under(data, "mmlu/test/world_history_test.csv",
              "\" When was\r\nit? \",1,\"2, or 3\",\"\"\"4\"\"\",5,C\n");
  write_under(data, "mmlu/test/anatomy_test.csv", "How many ribs?,12,24,36,48,B\n");
}

}  // namespace dofla::test
