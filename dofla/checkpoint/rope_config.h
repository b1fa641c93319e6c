// The rotary settings of a config.json, in the spellings of Transformers 5 and of older files.
#pragma once

#include "dofla/checkpoint/config_fields.h"
#include "dofla/checkpoint/hf_config.h"

namespace dofla {

// How a family spells the settings that older files keep outside the rope block.
struct RopeSpelling {
  std::string_view theta;
  std::string_view fraction;  // of a head's coordinates that are rotated
  double default_fraction;
};

// Throws Error on a rope type other than default and llama3, and on settings that contradict.
Rope read_rope(const ConfigFields& fields, const RopeSpelling& spelling, int64_t head_size);

}  // namespace dofla
