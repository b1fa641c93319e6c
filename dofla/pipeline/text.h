// From text to the windows of token ids that a model reads: the one place where that is done.
#pragma once

#include <functional>
#include <vector>

#include "dofla/checkpoint/checkpoint.h"
#include "dofla/core/progress.h"
#include "dofla/data/batches.h"

namespace dofla {

struct TextSource {
  std::vector<fs::path> files = {};  // text, as TextFiles takes it
  fs::path ids = {};                 // or a JSON file of token ids, as read_ids() takes it
  int64_t length = 0;                // tokens of a window of text; 0: the model's context
  int64_t most = 0;                  // the first so many windows; 0: all
  bool skip_bad_lines = false;       // leave out lines of text that are no document, and count them
};

// Windows of 2 to context tokens, one a call.
struct Windows {
  std::function<bool(TokenIds& ids)> next;  // false after the last one
  int64_t predicted_tokens = 0;             // of all of them
  SkippedLines skipped = {};
};

// Reads the text once to its end, so that a defect shows before the long work starts and the amount
// of work is known; `next` then reads it again. The tokenizer is that of the model's folder. Throws
// Error if the text has a defect, or if windows would be longer than the model's context.
Windows open_windows(const Checkpoint& model, const TextSource& source,
                     const Progress& progress = {});

// All of them at once, for training: sequences of ids must have one length then. Where lines were
// left out, `skipped` says how many.
std::vector<TokenIds> read_windows(const Checkpoint& model, const TextSource& source,
                                   const Progress& progress = {}, SkippedLines* skipped = nullptr);

// The first so many of them, or all there are.
std::vector<TokenIds> first_windows(const std::vector<TokenIds>& windows, int64_t count);

}  // namespace dofla
