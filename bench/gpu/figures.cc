#include "bench/gpu/figures.h"

#include <algorithm>

#include <fmt/format.h>

#include "dofla/core/error.h"

namespace dofla::bench {

Figures::Figures(const Ceilings& ceilings, const Device& gpu, std::string_view model,
                 const fs::path& json)
    : ceilings_(ceilings) {
  if (!json.empty()) {
    json_.open(json);
    if (!json_) fail("{}: cannot be written", json.string());
  }
  fmt::print("{}, teacher {}\n", gpu.description(), model);
  fmt::print("{:32} {:9.0f} TFLOP/s\n", "bf16 product", ceilings.product / 1e12);
  fmt::print("{:32} {:9.2f} TB/s\n", "copy", ceilings.copy / 1e12);
  write({{"name", "environment"},
         {"device", gpu.description()},
         {"model", model},
         {"product", ceilings.product},
         {"copy", ceilings.copy}});
}

void Figures::add(const Figure& figure) {
  // The work cannot take less than either ceiling allows: the share is of the higher of the two.
  const double least =
      std::max(figure.operations / ceilings_.product, figure.bytes / ceilings_.copy);
  fmt::print("{:32} {:9.3f} ms/{:6}", figure.name, figure.milliseconds, figure.per);
  if (least > 0) fmt::print(" {:4.0f} % of the peak", 1e5 * least / figure.milliseconds);
  fmt::print("\n");
  std::fflush(stdout);
  write({{"name", figure.name},
         {"milliseconds", figure.milliseconds},
         {"per", figure.per},
         {"operations", figure.operations},
         {"bytes", figure.bytes}});
}

void Figures::missing(std::string_view name, std::string_view reason) {
  fmt::print("{:32} missing: {}\n", name, reason);
  write({{"name", name}, {"missing", reason}});
}

void Figures::write(Json line) {
  if (!json_.is_open()) return;
  line["engine"] = "dofla";
  json_ << line.dump() << std::endl;  // at once: a run that is cut short keeps what it has
}

}  // namespace dofla::bench
