// Fidelity reports for the tests of the page: one as a user would see it, and one that is hard.
#pragma once

#include "dofla/fidelity/fidelity.h"

namespace dofla::test {

// Two students, two texts, everything measured.
FidelityReport plain_fidelity();

// Markup, broken UTF-8 and control characters in every name and text; NaN and infinities in
// numbers.
FidelityReport hostile_fidelity();

}  // namespace dofla::test
