#include "dofla/evaluate/likeliest.h"

#include <algorithm>

#include "dofla/core/parallel.h"
#include "dofla/model/finite.h"
#include "dofla/ops/sampling.h"

namespace dofla {

TokenIds likeliest_tokens(const Transformer& model, const Tensor& hidden, const Tensor& ids) {
  constexpr int64_t kRows = 64;  // logits of so many tokens exist at a time
  TokenIds likeliest(static_cast<size_t>(hidden.size(0)));
  for (int64_t begin = 0; begin < hidden.size(0); begin += kRows) {
    const int64_t end = std::min(begin + kRows, hidden.size(0));
    const Tensor logits = model.logits(hidden.slice(begin, end)).to(Device());
    if (!all_finite(logits)) fail_not_finite(model, ids, "the next token's distribution");
    const auto vocabulary = static_cast<size_t>(logits.size(1));
    parallel_for(end - begin, [&](int64_t row) {
      const float* at = logits.data<float>() + row * logits.size(1);
      likeliest[static_cast<size_t>(begin + row)] =
          static_cast<int64_t>(likeliest_token({at, vocabulary}));
    });
  }
  return likeliest;
}

}  // namespace dofla
