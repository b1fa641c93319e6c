// A file with a line for every step of training, to be followed while it grows or drawn later:
//   .csv    step,loss,learning_rate,learning_rate_alpha,tokens_per_second,seconds,layer_1,…
//   .jsonl  {"step":1,"loss":…,…,"layers":[…]}
// learning_rate_alpha and the losses of the layers are there where features are trained layer by
// layer. A loss that is not finite is an empty cell, or null.
#pragma once

#include <fstream>

#include "dofla/core/file.h"
#include "dofla/core/progress.h"

namespace dofla {

class TrainingLog {
 public:
  // With `resume` an existing file is continued: its lines from the first step that is made anew
  // are dropped then, so that every step has one line. Throws Error if the name ends otherwise, or
  // if the file exists and is not to be continued.
  TrainingLog(const fs::path& file, bool resume);

  void add(const TrainingStep& step);

  static void check(const fs::path& file, bool resume);  // throws as the constructor does

 private:
  enum class Format { kCsv, kJsonl };

  static Format format_of(const fs::path& file);
  void begin(const TrainingStep& first);
  // The lines of the file that stay, of steps before `step`; sets seconds_before_.
  std::string lines_before(int64_t step);
  std::string line(const TrainingStep& step) const;

  fs::path file_;
  bool resume_;
  Format format_;
  double seconds_before_ = 0;  // what was spent before the training went on
  std::ofstream out_;
};

}  // namespace dofla
