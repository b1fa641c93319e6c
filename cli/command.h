// How a command joins the program. Each lives in a file of its own and has one function here, which
// adds its subcommand, options, help and example; main.cc lists the functions. What several
// commands have in common (MODEL, --json, the text to read) is declared once, below.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/core/progress.h"
#include "dofla/distributed/group.h"
#include "dofla/model/transformer.h"
#include "dofla/pipeline/text.h"

namespace dofla::cli {

struct Command {
  const CLI::App* app;  // its subcommand: parsed() says whether the user asked for it
  // One of them. Throws on failure; main.cc turns that into one line.
  std::function<void()> run = {};                      // in one process
  std::function<void(const Group& group)> share = {};  // with any number of ranks
};

Command add_inspect(CLI::App& program);
Command add_tokenize(CLI::App& program);
Command add_dof(CLI::App& program);
Command add_sensitivity(CLI::App& program);
Command add_plan(CLI::App& program);
Command add_evaluate(CLI::App& program);
Command add_generate(CLI::App& program);
Command add_distill(CLI::App& program);
Command add_teach(CLI::App& program);
Command add_finetune(CLI::App& program);
Command add_compare(CLI::App& program);
Command add_quantize(CLI::App& program);
Command add_estimate(CLI::App& program);
Command add_report(CLI::App& program);
Command add_reproduce(CLI::App& program);
Command add_serve(CLI::App& program);
Command add_chat(CLI::App& program);

// The optional MODEL argument: a Hugging Face folder, the built-in wiki-mini if left out.
class ModelArgument {
 public:
  void add(CLI::App& app);
  fs::path folder() const;

 private:
  std::string folder_;
  CLI::Option* option_ = nullptr;
};

// Where token sequences come from: --data or --ids, --length, --sequences, --token-cache.
class TextArguments {
 public:
  // How many sequences are used unless the user says otherwise, and of the built-in text; 0: all.
  void add(CLI::App& app, int64_t sequences = 0, int64_t built_in_sequences = 0);

  // One a call, or all at once to train on, for a model's checkpoint.
  Windows open(const Checkpoint& checkpoint, const Progress& progress) const;
  WindowSet read(const Checkpoint& checkpoint, const Progress& progress) const;
  // The beginning of the text as one sequence, for who cuts it in a way of their own.
  TokenIds read_running(const Checkpoint& checkpoint, int64_t most_tokens) const;
  std::vector<std::string> files() const;  // that are read
  // Says so if it was this program that chose how many sequences were used, not the user.
  void remark_on_default(int64_t sequences) const;

 private:
  TextSource source(const ModelConfig& config) const;
  int64_t most_sequences() const;  // 0: all

  std::vector<std::string> data_;
  std::string ids_;
  int64_t length_ = 0;  // 0: the context
  std::optional<int64_t> sequences_;
  int64_t default_sequences_ = 0, built_in_sequences_ = 0;
  bool skip_bad_lines_ = false;
  std::string token_cache_;
};

// Options that are added while it lives stand under a heading of their own in the help, unless an
// inner section has them.
class HelpSection {
 public:
  HelpSection(CLI::App& app, const char* heading);
  ~HelpSection();
  HelpSection(const HelpSection&) = delete;
  HelpSection& operator=(const HelpSection&) = delete;

 private:
  CLI::App& app_;
  const char* heading_;
  size_t first_;  // option that was added within
};

// --token-cache: where tokens are kept; empty: nowhere.
void add_token_cache(CLI::App& app, std::string& folder);
// Says what came of it, and which lines of the text were left out.
void remark_on(const TextRemarks& remarks);

// What is written: a name without slashes at its end, not empty. prepare_place (core/file.h) finds
// out before the work whether it can be.
CLI::Option* add_out(CLI::App& app, std::string& out, const char* help, const char* type);

// prepare_place of a folder, which must not exist yet.
void prepare_new_folder(const std::string& out);

// The whole of a file, of a pipe, or with "-" of standard input.
std::string read_input(const std::string& file);

void add_json_flag(CLI::App& app, bool& json);

// An option that is a number: `type` is what stands for it in the help.
template <class Number>
CLI::Option* add_number(CLI::App& app, const char* name, Number& value, const char* help,
                        const char* type, const CLI::Validator& check) {
  return app.add_option(name, value, help)->type_name(type)->check(check);
}

// Checks of a number on the command line, stricter than the parser's own: all of the text must be
// the number, NaN and what does not fit into the type are refused.
inline constexpr const char* kWholeNumber = "whole";  // the names of these checks
inline constexpr const char* kRealNumber = "real";
CLI::Validator real_between(double low, double high);
CLI::Validator whole_between(int64_t low, int64_t high);
CLI::Validator whole_from(int64_t low);
CLI::Validator seed_number();  // all of uint64

}  // namespace dofla::cli
