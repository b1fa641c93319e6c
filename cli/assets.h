// What comes with the program and serves where the user names nothing: a small model and a text.
#pragma once

#include "dofla/core/file.h"

namespace dofla::cli {

fs::path built_in_model();                                    // the folder of wiki-mini
fs::path built_in_text(const char* instead = "give --data");  // wikipedia.jsonl.zst

}  // namespace dofla::cli
