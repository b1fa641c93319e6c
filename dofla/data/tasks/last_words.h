// Texts whose last word is to be said, such as LAMBADA.
#pragma once

#include "dofla/data/tasks/task.h"

namespace dofla {

// JSON lines of {"context", "continuation"}: questions of a single candidate. A space stands
// between the two, whatever spaces the file has there. Throws Error "file:line: …" on a malformed
// line or an empty text, and naming the file if it has no line.
std::vector<Question> read_last_words(const fs::path& file);

}  // namespace dofla
