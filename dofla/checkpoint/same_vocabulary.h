// Whether two models mean the same by a token's number.
#pragma once

#include "dofla/checkpoint/checkpoint.h"

namespace dofla {

// Throws Error that names both folders and what differs unless a student has the vocabulary of its
// teacher: equally many tokens, and the same under every number that both tokenizers know. Where a
// folder has no tokenizer only their number can be compared.
void require_same_vocabulary(const Checkpoint& student, const Checkpoint& teacher);

}  // namespace dofla
