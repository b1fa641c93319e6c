// A model of GPT-2 small's size with random weights, for machines that do not have a trained one:
// dense layers take the same time whatever the weights are.
#pragma once

#include "dofla/checkpoint/checkpoint.h"

namespace dofla::bench {

// Written to a temporary folder that is gone again when this returns: the checkpoint keeps its
// files mapped. It has no tokenizer.
Checkpoint random_gpt2();

}  // namespace dofla::bench
