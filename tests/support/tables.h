// Degrees-of-freedom tables that no model was run for.
#pragma once

#include <vector>

#include "dofla/dof/dof_table.h"

namespace dofla::test {

// One draw; the head in layer s and column h has dof[s][h] degrees of freedom at this λ.
DofTable table_with(const std::vector<std::vector<double>>& dof, double lambda);

// Three layers of two heads with two draws each, of random vectors.
DofTable small_table();

// What a GPU would have measured instead of the spectra.
DofTable with_values(DofTable table, std::vector<double> lambdas);

}  // namespace dofla::test
