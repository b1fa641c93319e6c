// The dofla binary as a user meets it.
#pragma once

#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/core/file.h"
#include "dofla/core/json.h"
#include "tests/support/fixtures.h"
#include "tests/support/process.h"

namespace dofla::test {

class CommandLine : public testing::Test {
 protected:
  static ProcessResult run(std::vector<std::string> arguments,
                           const std::map<std::string, std::string>& environment = {},
                           const std::string& out_file = {}) {
    arguments.insert(arguments.begin(), DOFLA_BINARY);
    return run_process(arguments, environment, out_file);
  }

  // Runs a command that must succeed with exactly one JSON object on standard output.
  static Json json(std::vector<std::string> arguments) {
    arguments.push_back("--json");
    const ProcessResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1);
    return parse_json(result.out, "stdout");
  }

  // Without the progress that long work reports, which on a busy machine any work may be.
  static std::string without_progress(const std::string& text) {
    static const std::regex progress("[^\\n]*[0-9]%  [^\\n]* of [^\\n]*/s[^\\n]*\\n");
    return std::regex_replace(text, progress, "");
  }

  // One line "dofla: …" on standard error, nothing on standard output.
  static void expect_failure(const std::vector<std::string>& arguments, int exit_code,
                             const std::string& part) {
    const ProcessResult result = run(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_EQ(result.out, "");
    const std::string said = without_progress(result.err);
    EXPECT_THAT(said, testing::StartsWith("dofla: "));
    EXPECT_THAT(said, testing::HasSubstr(part));
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << result.err;
    EXPECT_TRUE(said.ends_with('\n')) << result.err;
  }

  static std::vector<std::string> joined(std::vector<std::string> all,
                                         const std::vector<std::string>& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  std::string write(const std::string& name, std::string_view contents) const {
    write_whole(scratch.path() / name, contents);
    return (scratch.path() / name).string();
  }

  // A fixture model to break.
  fs::path copy_of_model() const {
    fs::path copy = scratch.path() / "model";
    fs::remove_all(copy);
    fs::copy(fixture, copy);
    return copy;
  }

  // A command that trains into `out` is killed between two checkpoints. With --resume it must
  // refuse `other_options`, naming `difference`, and else end in the bytes of a run that nobody
  // disturbed.
  static void expect_resume_after_a_kill(const std::vector<std::string>& command,
                                         const std::string& out,
                                         const std::vector<std::string>& other_options,
                                         const std::string& difference) {
    ASSERT_EQ(run(joined(command, {"--out", out + "-whole"})).exit_code, 0);
    const std::vector<std::string> cut = joined(command, {"--out", out});
    kill_after_a_checkpoint(cut, out + ".training");
    ASSERT_TRUE(fs::exists(out + ".training"));
    ASSERT_FALSE(fs::exists(out));
    expect_failure(cut, 1, "--resume");  // an unfinished run is not overwritten
    const std::vector<std::string> again = joined(cut, {"--resume"});
    expect_failure(joined(again, other_options), 1, difference);
    const ProcessResult resumed = run(again);
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(read_text(fs::path(out) / "model.safetensors"),
              read_text(fs::path(out + "-whole") / "model.safetensors"));
    EXPECT_FALSE(fs::exists(out + ".training"));
  }

  // A command that trains into `out` is asked to stop by a signal after a checkpoint, the
  // `checkpoints`-th. It must end as a shell expects of that signal and say how to go on; with
  // --resume it must end in the bytes of a run that nobody disturbed.
  static void expect_resume_after_a_signal(const std::vector<std::string>& command,
                                           const std::string& out, int signal,
                                           int checkpoints = 2) {
    ASSERT_EQ(run(joined(command, {"--out", out + "-whole"})).exit_code, 0);
    const std::vector<std::string> cut = joined(command, {"--out", out});
    const fs::path file = out + ".training";
    fs::file_time_type last;  // of the checkpoint that was seen last
    const auto ready = [&, seen = 0]() mutable {
      std::error_code missing;
      const fs::file_time_type written = fs::last_write_time(file, missing);
      if (!missing && (seen == 0 || written != last)) {
        ++seen;
        last = written;
      }
      return seen >= checkpoints;
    };
    const ProcessResult stopped = run_process(joined({DOFLA_BINARY}, cut), {}, {}, {signal, ready});
    EXPECT_EQ(stopped.exit_code, 128 + signal) << stopped.err;
    EXPECT_THAT(stopped.err, testing::HasSubstr("stopped after"));
    EXPECT_THAT(stopped.err, testing::HasSubstr("go on with the same command and --resume"));
    EXPECT_FALSE(fs::exists(out));
    EXPECT_FALSE(fs::exists(out + ".lock"));
    const ProcessResult resumed = run(joined(cut, {"--resume"}));
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(read_text(fs::path(out) / "model.safetensors"),
              read_text(fs::path(out + "-whole") / "model.safetensors"));
    EXPECT_FALSE(fs::exists(file));
  }

  const std::string fixture = (fixtures() / "gpt2").string();
  const ScratchFolder scratch;

 private:
  // The first checkpoint may be there before all work: waits until another one has taken its place.
  static void kill_after_a_checkpoint(const std::vector<std::string>& arguments,
                                      const std::string& file) {
    std::string command = DOFLA_BINARY;
    for (const std::string& argument : arguments) command += " '" + argument + "'";
    const std::string quoted = "'" + file + "'";
    run_process({"/bin/sh", "-c",
                 command + " & pid=$!; until [ -e " + quoted +
                     " ]; do sleep 0.01; done; first=$(stat -c %i " + quoted +
                     "); while [ \"$(stat -c %i " + quoted +
                     ")\" = \"$first\" ]; do sleep 0.01; done; kill -9 $pid; wait $pid"});
  }
};

}  // namespace dofla::test
