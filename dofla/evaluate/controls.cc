#include "dofla/evaluate/controls.h"

#include <algorithm>
#include <memory>

#include <fmt/ranges.h>

#include "dofla/distributed/agreement.h"
#include "dofla/linear/hybrid_attention.h"
#include "dofla/linear/linear_model.h"

namespace dofla {
namespace {

// A control at work.
struct Contender {
  Control control;
  Transformer& model;
  std::vector<std::unique_ptr<Attention>> attention;  // that it gives the model, one a layer
  double sum = 0;                                     // of the losses so far
  std::string refused = {};                           // why a device cannot compute it

  Contender(const Control& what, Transformer& whose, const FeatureSet& features)
      : control(what), model(whose), attention(features.layers.size()) {
    control.state_bytes = state_bytes(features, model.config());
    for (size_t i = 0; i < attention.size(); ++i)
      attention[i] = make_attention(model.config(), features.layers[i].to(model.device()),
                                    exact_keys_of(features.exact, i));
  }

  // Twice gives the model its own attention back.
  void exchange() {
    for (size_t i = 0; i < attention.size(); ++i)
      attention[i] = model.exchange_attention(static_cast<int64_t>(i), std::move(attention[i]));
  }

  void read(const TokenIds& ids) {
    if (!refused.empty()) return;
    const Exchanged meanwhile(*this);
    try {
      const SequenceLoss loss = next_token_loss(model, ids);
      sum += loss.loss * static_cast<double>(loss.tokens);
    } catch (const std::invalid_argument& problem) {
      refused = problem.what();
    }
  }

 private:
  struct Exchanged {
    Contender& whose;
    explicit Exchanged(Contender& contender) : whose(contender) { whose.exchange(); }
    ~Exchanged() { whose.exchange(); }
    Exchanged(const Exchanged&) = delete;
  };
};

// The student with one of its parts cut wherever a layer has both.
void add_halves(Transformer& student, const FeatureSet& features,
                std::vector<Contender>& contenders) {
  FeatureSet exact = features, linear = features;
  bool both = false;
  for (size_t i = 0; i < features.layers.size(); ++i) {
    if (features.layers[i].empty() || exact_keys_of(features.exact, i).empty()) continue;
    both = true;
    exact.layers[i] = {};
    linear.exact[i] = {};
  }
  if (!both) return;
  contenders.emplace_back(Control{.kind = ControlKind::kExactKeys}, student, exact);
  contenders.emplace_back(Control{.kind = ControlKind::kFeatures}, student, linear);
}

// The teacher with exact keys alone in the student's bytes.
void add_rivals(const Transformer& student, Transformer& teacher, const FeatureSet& features,
                std::vector<Contender>& contenders, std::vector<std::string>& left_out) {
  const ModelConfig& config = teacher.config();
  const int64_t bytes = state_bytes(features, student.config());
  const int64_t layers = config.layers - growing_layers(features, config);  // with a fixed state
  if (layers == 0) return;
  for (int64_t i = 0; i < config.layers; ++i)
    if (!teacher.attention(i).grows()) {
      left_out.emplace_back(
          "a window or a cache alone: the teacher has no softmax attention itself");
      return;
    }
  const int64_t count = std::min(
      config.context, bytes / (layers * config.kv_heads * exact_key_bytes(1, config.head_size)));
  if (count < least_keys({})) {
    left_out.push_back(
        fmt::format("a window or a cache alone: the memory is that of {} keys a layer, and {} are "
                    "the least",
                    count, least_keys({})));
    return;
  }
  for (const auto& [kind, policy] : {std::pair(ControlKind::kWindow, KeyPolicy::kRecent),
                                     std::pair(ControlKind::kCache, KeyPolicy::kAttended)}) {
    const ExactKeys exact = {.keys = count, .policy = policy};
    FeatureSet keys = exact_keys_alone(config.layers, exact);
    for (size_t i = 0; i < keys.exact.size(); ++i)
      if (keeps_softmax(features, i)) keys.exact[i] = {};
    contenders.emplace_back(Control{.kind = kind, .keys = count}, teacher, keys);
  }
}

// From what each rank has read: what all have.
void add_up(const Group& group, std::vector<Contender>& contenders, int64_t& tokens) {
  if (group.alone()) return;
  std::vector<double> sums = {static_cast<double>(tokens)};
  for (Contender& contender : contenders) {
    sums.push_back(contender.sum);
    for (const std::string& reason : group.gather(contender.refused))
      if (contender.refused.empty()) contender.refused = reason;
  }
  group.sum(sums);
  tokens = static_cast<int64_t>(sums.front());
  for (size_t i = 0; i < contenders.size(); ++i) contenders[i].sum = sums[i + 1];
}

}  // namespace

Controls evaluate_controls(Transformer& student, Transformer& teacher, const FeatureSet& features,
                           const NextSequence& next, int64_t total_tokens, const Progress& progress,
                           const Group& group) {
  Controls controls;
  std::vector<Contender> contenders;
  contenders.reserve(Names<ControlKind>::kAll.size());
  add_halves(student, features, contenders);
  add_rivals(student, teacher, features, contenders, controls.left_out);
  if (contenders.empty()) return controls;
  const Progress pace = at_own_pace(group, progress);
  Turns turns(group, next);
  int64_t tokens = 0;
  for (TokenIds ids; turns.next(ids);) {
    for (Contender& contender : contenders) contender.read(ids);
    tokens += static_cast<int64_t>(ids.size()) - 1;
    report(pace, {"controls", tokens, total_tokens, "tokens"});
  }
  add_up(group, contenders, tokens);
  for (Contender& contender : contenders) {
    Control& control = contender.control;
    control.loss = contender.sum / static_cast<double>(tokens);
    if (contender.refused.empty())
      controls.measured.push_back(control);
    else
      controls.left_out.push_back(describe(control) + ": " + contender.refused);
  }
  return controls;
}

std::string describe(const Control& control) {
  switch (control.kind) {
    case ControlKind::kExactKeys:
      return "its exact keys alone";
    case ControlKind::kFeatures:
      return "its features alone";
    case ControlKind::kWindow:
      return fmt::format("a window of {} keys alone", control.keys);
    case ControlKind::kCache:
      return fmt::format("a cache of {} keys alone", control.keys);
  }
  return "";
}

std::vector<std::string> notes(const Controls& controls, double student_loss) {
  std::vector<std::string> lines, as_good;
  for (const Control& control : controls.measured)
    if (control.kind != ControlKind::kFeatures && control.loss <= student_loss)
      as_good.push_back(describe(control));
  if (!as_good.empty())
    lines.push_back(fmt::format("the linear part does not pay here: the student does not beat {}",
                                fmt::join(as_good, ", ")));
  for (const std::string& reason : controls.left_out) lines.push_back("left out: " + reason);
  return lines;
}

}  // namespace dofla
