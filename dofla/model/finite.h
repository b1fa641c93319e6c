// Values that are not finite (NaN, infinity), and where in a model they first appear.
#pragma once

#include <string_view>

#include "dofla/core/error.h"
#include "dofla/model/transformer.h"

namespace dofla {

// An Error of its own type, so that training can tell a model that diverged from a broken file.
class NotFinite : public Error {
 public:
  using Error::Error;
};

bool all_finite(const Tensor& values);  // of any float type, on any device

// For whoever found that `what`, computed by the model from these ids, is not finite: runs the
// model again and throws NotFinite, naming the first layer whose output is not finite and, if there
// is one, a weight that is not.
[[noreturn]] void fail_not_finite(const Transformer& model,
                                  const Tensor& ids,  // [B, T], I64
                                  std::string_view what);

}  // namespace dofla
