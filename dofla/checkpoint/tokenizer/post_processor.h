// The special tokens that a model wants around a text, such as <s> before it.
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/checkpoint/tokenizer/json_view.h"

namespace dofla {

struct PostProcessor {
  std::vector<int64_t> before;
  std::vector<int64_t> after;

  // `post_processor` of a tokenizer.json: null, ByteLevel (which concerns offsets alone),
  // TemplateProcessing or a Sequence of these.
  static PostProcessor parse(const JsonView& json);
};

}  // namespace dofla
