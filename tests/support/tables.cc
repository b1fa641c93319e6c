#include "tests/support/tables.h"

#include <cmath>

#include "dofla/dof/estimate.h"
#include "tests/support/matrices.h"

namespace dofla::test {

DofTable table_with(const std::vector<std::vector<double>>& dof, double lambda) {
  DofTable table;
  table.model = {"gpt2", static_cast<int64_t>(dof.size()), static_cast<int64_t>(dof[0].size()), 64};
  table.lambda = lambda;
  table.samples = 1024;
  table.draws = table.sequences = 1;
  table.length = 512;
  for (const auto& layer : dof)
    for (const double N : layer) {  // n equal eigenvalues e with n · e/(e+λ) = N
      const double n = std::floor(N) + 1, share = N / n;
      table.spectra.emplace_back(static_cast<size_t>(n), lambda * share / (1 - share));
    }
  return table;
}

DofTable small_table() {
  DofTable table;
  table.model = {"gpt2", 3, 2, 16};
  table.lambda = 0x1p-8;
  table.samples = 60;
  table.draws = 2;
  table.sequences = 4;
  table.length = 32;
  table.seed = 18446744073709551615u;
  for (uint64_t i = 0; i < 12; ++i) {
    const Tensor samples = gaussian({60, 16}, 0.5 + 0.2 * static_cast<double>(i), i);
    table.spectra.push_back(spectrum(gram_matrix(kernel_samples(samples, table.gram))));
  }
  return table;
}

DofTable with_values(DofTable table, std::vector<double> lambdas) {
  for (const std::vector<double>& spectrum : table.spectra) {
    std::vector<double>& values = table.values.emplace_back();
    for (const double lambda : lambdas) values.push_back(degrees_of_freedom(spectrum, lambda));
  }
  table.spectra.clear();
  table.lambdas = std::move(lambdas);
  return table;
}

}  // namespace dofla::test
