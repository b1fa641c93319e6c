// From text to the windows of token ids that a model reads: the one place where that is done.
//
// Protocol. The tokens of a text (data/tokenize.h) are cut into windows of `length` tokens that do
// not overlap; the last one is kept, shorter, if it has at least 2 tokens. A model sees each window
// on its own, so the first token of a window is never predicted: a window of n tokens has n − 1
// predictions.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dofla/checkpoint/checkpoint.h"
#include "dofla/core/progress.h"
#include "dofla/data/batches.h"
#include "dofla/data/corpus.h"

namespace dofla {

struct TextSource {
  std::vector<fs::path> files = {};  // text, as TextFiles takes it
  fs::path ids = {};                 // or a JSON file of token ids, as read_ids() takes it
  int64_t length = 0;                // tokens of a window of text; 0: the model's context
  int64_t most = 0;                  // the first so many windows; 0: all
  bool skip_bad_lines = false;       // leave out lines of text that are no document, and count them
  // Where tokens are kept for the next run (data/token_cache.h); empty: nowhere. A run of at most
  // kFewTokens tokens makes them each time. A folder that cannot be written to ends no run.
  fs::path token_cache = {};
};

inline constexpr int64_t kFewTokens = int64_t{1} << 20;

// What a caller may want to say of a text.
struct TextRemarks {
  SkippedLines skipped = {};
  std::vector<std::string> token_cache = {};  // what became of the tokens there
};

// Windows of 2 to context tokens, one a call.
struct Windows {
  std::function<bool(TokenIds& ids)> next;  // false after the last one
  std::function<void()> rewind;             // to the first one
  int64_t predicted_tokens = 0;             // of all of them
  TextRemarks remarks = {};
};

// Tokenises the text to its end, so that a defect shows before the long work starts and the amount
// of work is known. The tokenizer is that of the model's folder. Throws Error if the text has a
// defect, or if windows would be longer than the model's context.
Windows open_windows(const Checkpoint& model, const TextSource& source,
                     const Progress& progress = {});

// The equally long ones by their numbers, for training: sequences of ids must have one length then.
WindowSet read_windows(const Checkpoint& model, const TextSource& source,
                       const Progress& progress = {}, TextRemarks* remarks = nullptr);

// The beginning of the text as one sequence of at most so many tokens, whatever the model's
// context: documents with a blank line between them and no special tokens. Throws Error if the text
// has a defect or an id that the model has not.
TokenIds read_running_text(const Checkpoint& model, const TextSource& source, int64_t most_tokens,
                           SkippedLines* skipped = nullptr);

// The first so many of them, or all there are.
std::vector<TokenIds> first_windows(const WindowSet& windows, int64_t count);

}  // namespace dofla
