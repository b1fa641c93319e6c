// The report as JSON, with the names that the structs have.
#pragma once

#include "dofla/core/json.h"
#include "dofla/fidelity/fidelity.h"

namespace dofla {

// {"tokens", "loss", "teacher_loss", "kl", "kl_stderr", "kl_median", …, "same_top", …}
OrderedJson to_json(const Divergence& divergence);

OrderedJson to_json(const Verdict& verdict);  // {"grade", "headline", "findings"}

// [{"name", "loss", "state_bytes"}]: those that were measured
OrderedJson to_json(const Controls& controls);

// {"teacher", "students": [{"path", "bytes", "texts": […], …}], …}
OrderedJson to_json(const FidelityReport& report);

}  // namespace dofla
