// Coordinates of queries and keys. Softmax attention is the same in all of these; features and
// degrees of freedom are not (docs/theory.md, "Coordinates").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dofla/checkpoint/checkpoint.h"
#include "dofla/core/names.h"
#include "dofla/core/progress.h"
#include "dofla/features/moments.h"
#include "dofla/model/token_ids.h"
#include "dofla/model/transformer.h"

namespace dofla {

enum class Coordinates {
  kRaw,       // the model's own
  kCentred,   // keys shifted, so that the mean of q + k is 0
  kBalanced,  // and mapped, so that queries and keys have the same covariance
};

template <>
struct Names<Coordinates> {
  static constexpr std::string_view kWhat = "coordinates";
  static constexpr std::array kAll = {Name{Coordinates::kRaw, "raw"},
                                      Name{Coordinates::kCentred, "centred"},
                                      Name{Coordinates::kBalanced, "balanced"}};
};

// q' = A q and k' = A⁻ᵀ (k − c), for a key head and all query heads that share it.
struct LayerCoordinates {
  Tensor map;    // A, [Hkv, D, D] in F32
  Tensor shift;  // c, [Hkv, D] in F32
};

struct CoordinateSet {
  Coordinates kind = Coordinates::kRaw;
  std::vector<LayerCoordinates> layers = {};  // none where the coordinates are the model's own

  // Key heads whose queries or keys do not vary, so that nothing could be balanced: they keep their
  // own coordinates. Layer and head, from 0.
  std::vector<std::pair<int64_t, int64_t>> unvaried = {};
};

// Of every layer. A part of the map that the model's rotary embedding or q/k norms do not commute
// with is left out: of a rotated pair of coordinates only the length is balanced, and it is not
// shifted; heads that share the weights of a norm share their map.
CoordinateSet choose_coordinates(const ModelConfig& config, const QueryKeyMoments& moments,
                                 Coordinates kind);

// Chosen by what the model makes of these token ids, of which ranks share the sequences.
CoordinateSet measure_coordinates(const Transformer& model, const std::vector<TokenIds>& sequences,
                                  Coordinates kind, const Progress& progress = {},
                                  const Group& group = {});

// The same model, whose projections (or q/k norms) give queries and keys in these coordinates.
// Throws Error naming the layer and head if a map has no inverse.
Checkpoint in_coordinates(const Checkpoint& model, const CoordinateSet& coordinates);

}  // namespace dofla
