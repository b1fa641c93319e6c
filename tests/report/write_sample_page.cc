// Writes the page of one of the sample reports to standard output, for browser_test.py.
#include <iostream>
#include <string_view>

#include "dofla/report/fidelity_page.h"
#include "dofla/report/page.h"
#include "tests/support/sample_fidelity.h"
#include "tests/support/sample_report.h"

int main(int argc, char** argv) {
  const std::string_view sample = argc == 2 ? argv[1] : "";
  if (sample == "paper") {
    std::cout << dofla::render_page(dofla::test::paper_report());
  } else if (sample == "hostile") {
    std::cout << dofla::render_page(dofla::test::hostile_report());
  } else if (sample == "large") {
    std::cout << dofla::render_page(dofla::test::large_report());
  } else if (sample == "fidelity" || sample == "fidelity-hostile") {
    std::cout << dofla::render_fidelity_page(
        sample == "fidelity" ? dofla::test::plain_fidelity() : dofla::test::hostile_fidelity(),
        {"dofla compare", "0"});
  } else {
    std::cerr << "usage: write_sample_page paper|hostile|large|fidelity|fidelity-hostile\n";
    return 2;
  }
}
