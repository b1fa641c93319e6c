// What was measured of a model, for every draw of every head. On the CPU that is the spectrum of
// the head's Gram matrix, from which the degrees of freedom at any λ follow without the model. A
// GPU gives no spectra, but degrees of freedom at many λ.
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/core/json.h"
#include "dofla/dof/gram.h"
#include "dofla/features/coordinates.h"
#include "dofla/model/identity.h"

namespace dofla {

// The ridge λ where none is asked for: the paper's for GPT-2.
inline constexpr double kDefaultLambda = 0x1p-4;
// How exact N_λ from a table's spectra is, relative, at the smallest λ; the error falls as 1/λ, to
// a few 1e-6 at 2⁻⁸. Two draws of the samples differ by far more.
inline constexpr double kTableTolerance = 1e-3;
// The largest relative error by rounding with which a table still reports N_λ.
inline constexpr double kLargestRounding = 1e-3;

// How far features are from the kernel of one head: ‖(Σ+λI)^(−½)(Σ − Σ̂)(Σ+λI)^(−½)‖ for every M of
// a ladder, with features from the Gaussian density and from the leverage density.
struct FeatureErrors {
  std::vector<double> gaussian, leverage;
  double largest_score = 0;  // leverage score, of the Gaussian features
};

struct DofTable {
  ModelIdentity model;
  Coordinates coordinates = Coordinates::kRaw;  // of the queries and keys
  int64_t feature_heads = 0;  // heads of a layer that were measured: key heads; 0: all query heads
  GramScale gram = GramScale::kTrace;
  double lambda = kDefaultLambda;    // the one that was asked for; others can be asked later
  double smallest_lambda = 0x1p-16;  // the table answers for N_λ down to here
  int64_t samples = 0;               // J
  int64_t draws = 0;                 // R
  int64_t sequences = 0;             // of text, and their length in tokens
  int64_t length = 0;
  uint64_t seed = 0;
  std::vector<std::vector<double>> spectra;  // [layers, heads, draws], eigenvalues largest first
  // From a GPU, in the place of spectra: the λ that were measured, and N_λ at each, [layers, heads,
  // draws] of as many values. NaN where λ is lost in the rounding of double precision.
  std::vector<double> lambdas;
  std::vector<std::vector<double>> values;
  // Where they were asked for: the ladder, and the errors at λ of every head, [layers, heads].
  std::vector<int64_t> ladder;
  std::vector<FeatureErrors> errors;

  int64_t heads_in_layer() const { return feature_heads > 0 ? feature_heads : model.heads; }
  bool has_spectra() const { return lambdas.empty(); }
  const std::vector<double>& spectrum(int64_t layer, int64_t head, int64_t draw) const;
};

// Degrees of freedom over the draws.
struct DofEstimate {
  double mean = 0;
  double spread = 0;  // sample standard deviation; 0 for a single draw
};

// One row of the layer × head table. A layer's degrees of freedom are those of the head with the
// largest mean.
struct DofRow {
  std::vector<DofEstimate> heads;
  int64_t largest_head = 0;

  const DofEstimate& largest() const { return heads[static_cast<size_t>(largest_head)]; }
};

// One row a layer. Throws Error if λ is not positive, is none that the table answers for, or is
// lost in the rounding of a Gram matrix that was not scaled.
std::vector<DofRow> degrees_of_freedom(const DofTable& table, double lambda);

Json to_json(const FeatureErrors& errors);  // {"gaussian","leverage","largest_score"}

// {"feature_heads","gram","lambda","samples","draws",…,"layers":[{"dof","spread","heads":[{"dof","spread"}]}]}
// at the table's λ, with "ladder" and the "errors" of every head where they were measured: the file
// of the table without its spectra or values.
Json dof_summary(const DofTable& table);

// The file of the table, "format": "dofla.dof". Eigenvalues are written with ten digits. Loading
// trusts nothing in the file and throws Error "path: …".
void save_dof_table(const fs::path& path, const DofTable& table);
DofTable load_dof_table(const fs::path& path);
DofTable read_dof_table(const Json& json, const std::string& where);  // of such a file

}  // namespace dofla
