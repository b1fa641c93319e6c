// exp over many doubles with the widest vectors of the machine at hand.
#pragma once

#include <cstdint>

namespace dofla {

// x[i] = exp(x[i] - shift), to about one unit in the last place; what underflows is 0.
void exp_shifted(double* x, int64_t count, double shift);

}  // namespace dofla
