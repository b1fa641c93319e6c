// A linear-attention model is its teacher with other attention: the teacher's weights and
// tokenizer, the features, and in config.json a "teacher" and a "linear_attention" block. Folders
// of dofla 0.1.0 have the teacher's config.json with that second block in it, and are read as well.
#pragma once

#include "dofla/features/feature_set.h"
#include "dofla/model/operations.h"
#include "dofla/model/transformer.h"

namespace dofla {

// The teacher's body with linear attention in every layer that has features, exact keys and
// features in one softmax where it has those too, and its own softmax attention in the others. Its
// queries and keys are in the features' coordinates.
Transformer make_linear_model(const Checkpoint& teacher, const FeatureSet& features,
                              const Device& device = {}, DType gpu_weights = DType::kBF16);

// The model in a folder, softmax or linear, whichever its config.json says. Its features are its
// own and can be trained; for its weights there is Transformer::make_trainable, and on a GPU F32.
Transformer load_model(const Checkpoint& checkpoint, const Device& device = {},
                       DType gpu_weights = DType::kBF16);

bool is_linear(const Checkpoint& checkpoint);
FeatureSet load_features(const Checkpoint& checkpoint);  // of a linear model; Error if it is none

// Writes everything that makes a model folder into an empty one: weights, features, configuration,
// tokenizer, and the Python files that Transformers loads it with (docs/transformers.md). `about`
// says how the features were made (loss, data, seed, …) and goes into the "linear_attention" block.
void write_linear_model(const fs::path& folder, const Checkpoint& teacher,
                        const FeatureSet& features, const Json& about);

// Writes a model that was loaded from `source` and trained since, softmax or linear, into an empty
// folder: weights and features as they are now, in float32 and under their names in `source`, with
// the configuration and the tokenizer from there. `about` says how it was trained (task, data,
// seed, …) and stands in config.json as "training".
void write_trained_model(const fs::path& folder, const Checkpoint& source, const Transformer& model,
                         const Json& about);

// What one sequence takes in memory: the features' sums and the exact keys of all layers, whatever
// its length, and the softmax model's key/value cache at `tokens`. Keys and values count 16 bits,
// as on a GPU; a CPU keeps them in 32.
int64_t state_bytes(const FeatureSet& features, const ModelConfig& config);
int64_t cache_bytes(const ModelConfig& config, int64_t tokens);

// Of a model that keeps softmax attention in some layers, or, without any in `features`, in all:
// how many these are, and what one sequence of `tokens` takes in all.
bool keeps_softmax(const FeatureSet& features, size_t layer);
int64_t growing_layers(const FeatureSet& features, const ModelConfig& config);
int64_t sequence_bytes(const FeatureSet& features, const ModelConfig& config, int64_t tokens);

// Of attention in one of the layers; `tokens` count where that is softmax attention.
TokenCost token_cost(const FeatureSet& features, const ModelConfig& config, size_t layer,
                     int64_t tokens);

}  // namespace dofla
