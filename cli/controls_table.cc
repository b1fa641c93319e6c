#include "cli/controls_table.h"

#include <fmt/format.h>

#include "dofla/core/bytes.h"

namespace dofla::cli {

std::string controls_table(const Controls& controls, const JudgedStudent& student) {
  std::string text;
  const auto add_row = [&](const std::string& name, double loss, int64_t bytes) {
    text += fmt::format("  {:<28} {:>+10.4f}  {:>9}\n", name, loss - student.teacher_loss,
                        with_bytes_unit(bytes));
  };
  if (!controls.measured.empty()) {
    text = fmt::format("  {:<28} {:>10}  {:>9}\n", "", "above the", "memory a");
    text += fmt::format("  {:<28} {:>10}  {:>9}\n", "model", "teacher", "sequence");
    add_row("the student", student.loss, student.state_bytes);
  }
  for (const Control& control : controls.measured)
    add_row(describe(control), control.loss, control.state_bytes);
  for (const std::string& note : notes(controls, student.loss)) text += note + "\n";
  return text;
}

}  // namespace dofla::cli
