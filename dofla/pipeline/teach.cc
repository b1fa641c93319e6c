#include "dofla/pipeline/teach.h"

#include <algorithm>
#include <cmath>

#include "dofla/checkpoint/fingerprint.h"
#include "dofla/checkpoint/tokenizer.h"
#include "dofla/core/error.h"
#include "dofla/evaluate/next_token.h"
#include "dofla/linear/linear_model.h"
#include "dofla/train/taught_gradient.h"

namespace dofla {

Taught teach(const fs::path& file, const Checkpoint& teacher, const WindowSet& windows, int64_t top,
             const Device& device, const Progress& progress) {
  const int64_t vocabulary = teacher.config().vocabulary;
  if (top > vocabulary) fail("the {} likeliest tokens of a vocabulary of {}", top, vocabulary);
  const Transformer model = load_model(teacher, device);
  Json about = {{"model", fingerprint_of(teacher)}, {"text", fingerprint_of(windows)}};
  if (fs::exists(teacher.folder() / "tokenizer.json"))  // ids may come without one
    about["tokenizer"] = fmt::format("{:016x}", tokenizer_fingerprint(teacher.folder()));
  Taught taught = {.header = {.windows = static_cast<int64_t>(windows.size()),
                              .length = windows.length(),
                              .vocabulary = vocabulary,
                              .top = top,
                              .about = about}};
  TeacherFileWriter writer(file, taught.header);
  double rest = 0;
  for (int64_t i = 0; i < taught.header.windows; ++i) {
    const TokenIds ids = windows[static_cast<size_t>(i)];
    const TopTokens rows = top_tokens(model, to_tensor(ids), top);
    if (!std::ranges::all_of(rows.log_probability, [](float x) { return std::isfinite(x); })) {
      require_finite_loss(model, ids);
      fail("{}: window {}: a distribution that is not finite", teacher.folder().string(), i + 1);
    }
    for (const float x : rows.log_rest) rest += std::exp(static_cast<double>(x));
    writer.append(ids, rows);
    report(progress, {"teach", (i + 1) * windows.length(), taught.header.windows * windows.length(),
                      "tokens"});
  }
  teacher.require_unchanged();
  writer.commit();
  taught.named = 1 - rest / static_cast<double>(taught.header.windows * windows.length());
  taught.bytes = static_cast<int64_t>(fs::file_size(file));
  return taught;
}

}  // namespace dofla
