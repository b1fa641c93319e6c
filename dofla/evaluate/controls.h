// What a student has to beat to be worth having: itself with a part cut out, and its teacher with
// nothing but exact keys in the same memory. They cost no training.
#pragma once

#include <string>
#include <vector>

#include "dofla/core/names.h"
#include "dofla/evaluate/next_token.h"
#include "dofla/features/feature_set.h"

namespace dofla {

enum class ControlKind {
  kExactKeys,  // the student without the features beside its exact keys: what leaves is forgotten
  kFeatures,   // the student without the exact keys beside its features
  kWindow,     // the teacher with the first and the newest keys
  kCache,      // the teacher with the first, the newest and the keys attended most lately
};

template <>
struct Names<ControlKind> {
  static constexpr std::string_view kWhat = "control";
  static constexpr std::array kAll = {
      Name{ControlKind::kExactKeys, "exact-keys"}, Name{ControlKind::kFeatures, "features"},
      Name{ControlKind::kWindow, "window"}, Name{ControlKind::kCache, "cache"}};
};

struct Control {
  ControlKind kind = ControlKind::kWindow;
  int64_t keys = 0;         // of every layer, for kWindow and kCache
  int64_t state_bytes = 0;  // of a sequence, as state_bytes() counts
  double loss = 0;          // mean next-token cross-entropy; may be infinite or NaN
};

struct Controls {
  std::vector<Control> measured;
  std::vector<std::string> left_out;  // "a window alone: …", and why
};

// Measures the controls on a text, all in one pass over it. Layers with the student's softmax
// attention keep it in all of them. kExactKeys and kFeatures exist where a layer has both; kWindow
// and kCache have as many keys in every other layer as the student's bytes buy, up to the context,
// and are left out where these are too few for a cache. Both models have their own attention again
// when this returns.
Controls evaluate_controls(Transformer& student, Transformer& teacher,
                           const FeatureSet& features,  // the student's
                           const NextSequence& next, int64_t total_tokens = 0,
                           const Progress& progress = {}, const Group& group = {});

std::string describe(const Control& control);  // "a window of 64 keys alone"

// What there is to say of them, a line each: "the linear part does not pay here: …" if a control
// without features is not worse than the student, and what was left out.
std::vector<std::string> notes(const Controls& controls, double student_loss);

}  // namespace dofla
