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
#include "dofla/data/batches.h"
#include "dofla/model/transformer.h"

namespace dofla::cli {

struct Command {
  const CLI::App* app;        // its subcommand: parsed() says whether the user asked for it
  std::function<void()> run;  // throws on failure; main.cc turns that into one line
};

Command add_inspect(CLI::App& program);
Command add_tokenize(CLI::App& program);
Command add_dof(CLI::App& program);
Command add_plan(CLI::App& program);
Command add_evaluate(CLI::App& program);
Command add_generate(CLI::App& program);
Command add_distill(CLI::App& program);
Command add_finetune(CLI::App& program);
Command add_report(CLI::App& program);
Command add_reproduce(CLI::App& program);

// The optional MODEL argument: a Hugging Face folder, the built-in wiki-mini if left out.
class ModelArgument {
 public:
  void add(CLI::App& app);
  fs::path folder() const;

 private:
  std::string folder_;
  CLI::Option* option_ = nullptr;
};

// Where token sequences come from: --data or --ids, --length, --sequences.
class TextArguments {
 public:
  void add(CLI::App& app, int64_t sequences = 0);  // T unless the user says otherwise; 0: all

  // A sequence of 2 to context tokens a call; false after the last one.
  using Next = std::function<bool(TokenIds& ids)>;
  struct Sequences {
    Next next;
    int64_t predicted_tokens = 0;  // of all sequences
  };
  // Reads the text once to its end, so that a defect shows before the long work starts and the
  // amount of work is known; `next` then reads it again.
  Sequences open(const fs::path& model_folder, const ModelConfig& config,
                 const Progress& progress) const;
  // All of them at once, for a model's checkpoint.
  std::vector<TokenIds> read(const Checkpoint& checkpoint, const Progress& progress) const;

 private:
  Sequences open_ids(const ModelConfig& config) const;
  Sequences open_files(const fs::path& model_folder, const ModelConfig& config,
                       const Progress& progress) const;

  std::vector<std::string> data_;
  std::string ids_;
  int64_t length_ = 0;     // 0: the context
  int64_t sequences_ = 0;  // 0: all
};

void add_json_flag(CLI::App& app, bool& json);

// Tokenizer of a model's folder; nothing if the folder has none.
std::optional<Tokenizer> find_tokenizer(const fs::path& model_folder);

// An option that is a number: `type` is what stands for it in the help.
template <class Number>
CLI::Option* add_number(CLI::App& app, const char* name, Number& value, const char* help,
                        const char* type, const CLI::Validator& check) {
  return app.add_option(name, value, help)->type_name(type)->check(check);
}

// Checks of a number on the command line, stricter than the parser's own: all of the text must be
// the number, NaN and what does not fit into the type are refused.
CLI::Validator real_between(double low, double high);
CLI::Validator whole_between(int64_t low, int64_t high);
CLI::Validator whole_from(int64_t low);
CLI::Validator seed_number();  // all of uint64

}  // namespace dofla::cli
