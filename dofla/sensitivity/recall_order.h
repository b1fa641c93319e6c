// What key heads do for tokens that repeat what stood far back (docs/sensitivity.md, "Recall").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dofla/core/json.h"

namespace dofla {

struct RecallOrder {
  struct Step {
    int64_t layer, head;
    int64_t keys;  // of this key head in the plan for ordinary text
    double saved;  // of `lost`, when it keeps all of its keys, as those before it do
  };

  int64_t windows = 0;           // that it was measured on; 0: recall is not known
  double lost = 0;               // in nats a repeated token, with the plan for ordinary text
  std::vector<Step> steps = {};  // every key head of every layer once, those that save most first

  // What a key head adds to the loss of repeated tokens for every token of a window of this length
  // that its cache lacks, never below 0: [layers, key heads]. What is repeated may have stood
  // anywhere, so it falls in proportion. Heads that save little alone and much together share that.
  // All 0 where recall is not known.
  std::vector<std::vector<double>> added_a_token(int64_t layers, int64_t key_heads,
                                                 int64_t length) const;
};

// {"windows","lost","order":[{"layer","head","keys","saved"}]}, layers and heads from 1. Reading
// throws Error "where: …" unless every key head is there once, with fewer keys than `length`.
Json to_json(const RecallOrder& recall);
RecallOrder read_recall(const Json& json, int64_t layers, int64_t key_heads, int64_t length,
                        const std::string& where);

}  // namespace dofla
