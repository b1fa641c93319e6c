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
    double saved;  // of `lost`, when this key head keeps all of its keys besides those before it
  };

  int64_t windows = 0;           // that it was measured on; 0: recall is not known
  int64_t few = 0;               // keys of a head that does not keep all of them
  double lost = 0;               // in nats a repeated token, when all heads keep few
  std::vector<Step> steps = {};  // every key head of every layer once, those that save most first

  // What it is worth that a key head keeps all of its keys, never below 0: [layers, key heads].
  // Heads that save little alone and much together share it. All 0 where recall is not known.
  std::vector<std::vector<double>> worth(int64_t layers, int64_t key_heads) const;
};

// {"windows","few","lost","order":[{"layer","head","saved"}]}, layers and heads from 1. Reading
// throws Error "where: …" unless every key head is there once.
Json to_json(const RecallOrder& recall);
RecallOrder read_recall(const Json& json, int64_t layers, int64_t key_heads,
                        const std::string& where);

}  // namespace dofla
