// The spectrum of a Gram matrix, and the degrees of freedom N_λ = tr Σ(Σ+λI)⁻¹ = Σ e/(e+λ) that
// follow from it for any λ. docs/theory.md has the mathematics.
#pragma once

#include <span>
#include <vector>

#include "dofla/dof/gram.h"

namespace dofla {

// How exact a spectrum must be: N_λ within `tolerance`, relative, for every λ ≥ smallest_lambda.
struct SpectrumAccuracy {
  double smallest_lambda = 0x1p-16;
  double tolerance = 1e-6;
};

// The eigenvalues of Σ, largest first, none negative, those too small to matter left out. Runs on
// one thread, so that the result does not depend on how many there are: call it for many heads in
// parallel.
//
// Where a pivoted Cholesky factor F of low rank leaves over a trace of r ≤ ½ · tolerance · λ · N_λ,
// the eigenvalues are those of FᵀF: N_λ(Σ) lies between N_λ(F Fᵀ) and N_λ(F Fᵀ) + r/λ. Elsewhere
// the whole matrix is formed and reduced. The other half of the tolerance goes to left-out
// eigenvalues.
std::vector<double> spectrum(const PsdMatrix& matrix, const SpectrumAccuracy& accuracy = {});

// Every eigenvalue of Σ by dense reduction, largest first; rounding below zero is set to zero.
std::vector<double> dense_spectrum(const PsdMatrix& matrix);

// Σ e/(e+λ). Throws std::invalid_argument unless λ is positive and finite.
double degrees_of_freedom(std::span<const double> spectrum, double lambda);

// How far rounding may have moved N_λ: double precision knows each of the J eigenvalues to about
// √J · eps · e₁. Large where λ is lost beside e₁, as it is in matrices that are not scaled.
double rounding_error(std::span<const double> spectrum, int64_t samples, double lambda);

// Where only tr Σ and tr(Σ+λI)⁻¹ are known: N_λ, or NaN if rounding may have moved it by more than
// `largest_error` of it. e₁ is at most tr Σ, and N_λ moves by at most tr(Σ+λI)⁻¹ times as much as
// the eigenvalues do.
double degrees_of_freedom(double gram_trace, double inverse_trace, int64_t samples, double lambda,
                          double largest_error);

}  // namespace dofla
