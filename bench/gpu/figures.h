// What the GPU benchmark measures, printed for people and written as JSON for
// bench/peers/compare.py.
#pragma once

#include <fstream>
#include <string>
#include <string_view>

#include "dofla/core/device.h"
#include "dofla/core/file.h"
#include "dofla/core/json.h"

namespace dofla::bench {

// What this GPU can do at most, measured in the same run.
struct Ceilings {
  double product = 0;  // operations a second of a large bf16 matrix product
  double copy = 0;     // bytes a second, read and written, of a large copy
};

// A time, and the least work that it stands for: model/operations.h says what is counted.
struct Figure {
  std::string name;  // as bench/peers/pytorch.py has it
  double milliseconds = 0;
  std::string per;        // "sample", "token", or "run" for the whole workload
  double operations = 0;  // of matrix products, for one sample or token; 0: not counted
  double bytes = 0;       // read and written, for one sample or token; 0: not counted
};

class Figures {
 public:
  // `json` names a file that gets one line a figure; empty: none.
  Figures(const Ceilings& ceilings, const Device& gpu, std::string_view model,
          const fs::path& json);

  void add(const Figure& figure);
  void missing(std::string_view name, std::string_view reason);  // instead of a figure

 private:
  void write(Json line);

  Ceilings ceilings_;
  std::ofstream json_;
};

}  // namespace dofla::bench
