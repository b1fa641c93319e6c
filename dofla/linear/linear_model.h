// A linear-attention model is its teacher with other attention: the teacher's weights and
// tokenizer, the features, and a "linear_attention" block in config.json.
#pragma once

#include "dofla/distill/feature_set.h"
#include "dofla/model/transformer.h"

namespace dofla {

// The teacher's body with linear attention in every layer.
Transformer make_linear_model(const Checkpoint& teacher, const FeatureSet& features);

// The model in a folder, softmax or linear, whichever its config.json says.
Transformer load_model(const Checkpoint& checkpoint);

bool is_linear(const Checkpoint& checkpoint);
FeatureSet load_features(const Checkpoint& checkpoint);  // of a linear model; Error if it is none

// Writes a complete model folder, whole or not at all; Error if it exists. `about` says how the
// features were made (loss, data, seed, …) and goes into the "linear_attention" block.
void save_linear_model(const fs::path& folder, const Checkpoint& teacher,
                       const FeatureSet& features, const Json& about);

}  // namespace dofla
