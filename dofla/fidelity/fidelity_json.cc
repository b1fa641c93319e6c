#include "dofla/fidelity/fidelity_json.h"

#include "dofla/evaluate/answers_json.h"

namespace dofla {
namespace {

OrderedJson to_json(const Calibration& calibration) {
  OrderedJson bins = OrderedJson::array();
  for (const ReliabilityBin& bin : calibration.bins)
    bins.push_back(
        {{"tokens", bin.tokens}, {"confidence", bin.confidence}, {"accuracy", bin.accuracy}});
  return {{"error", calibration.error}, {"bins", std::move(bins)}};
}

OrderedJson to_json(const std::vector<Slice>& slices) {
  OrderedJson json = OrderedJson::array();
  for (const Slice& slice : slices)
    json.push_back({{"name", slice.name},
                    {"tokens", slice.tokens},
                    {"kl", slice.kl},
                    {"added", slice.added},
                    {"share", slice.share}});
  return json;
}

OrderedJson to_json(const TextControls& text) {
  return {{"windows", text.windows},
          {"loss", text.student_loss},
          {"teacher_loss", text.teacher_loss},
          {"measured", dofla::to_json(text.controls)},
          {"notes", notes(text.controls, text.student_loss)}};
}

OrderedJson to_json(const TextFidelity& text) {
  OrderedJson json = {{"name", text.name},
                      {"in_domain", text.in_domain},
                      {"trained_on", text.trained_on},
                      {"grade", name(grade_of(text.divergence))}};
  json.update(dofla::to_json(text.divergence));
  json["by_position"] = to_json(text.where.by_position);
  json["by_frequency"] = to_json(text.where.by_frequency);
  json["by_distance"] = to_json(text.where.by_distance);
  json["controls"] = to_json(text.controls);
  return json;
}

OrderedJson to_json(const Cost& cost) {
  OrderedJson bytes = OrderedJson::array();
  for (size_t i = 0; i < kCostLengths.size(); ++i)
    bytes.push_back({{"tokens", kCostLengths[i]}, {"bytes", cost.bytes[i]}});
  return {{"bytes", std::move(bytes)},
          {"timed_tokens", cost.timed_tokens},
          {"prefill_tokens_per_second", cost.prefill},
          {"decode_tokens_per_second", cost.decode}};
}

OrderedJson to_json(const std::vector<LikelyToken>& tokens) {
  OrderedJson json = OrderedJson::array();
  for (const LikelyToken& token : tokens) json.push_back({{"token", token.text}, {"p", token.p}});
  return json;
}

OrderedJson to_json(const WorstPassage& passage) {
  return {{"text", passage.text},
          {"window", passage.window},
          {"position", passage.position},
          {"kl", passage.kl},
          {"context", passage.context},
          {"next", passage.next},
          {"teacher_p", passage.teacher_p},
          {"student_p", passage.student_p},
          {"teacher", to_json(passage.teacher)},
          {"student", to_json(passage.student)}};
}

OrderedJson to_json(const Abilities& abilities) {
  OrderedJson json = dofla::to_json(abilities.recall), tasks = OrderedJson::array();
  if (abilities.last_words) json["last_words"] = dofla::to_json(*abilities.last_words);
  for (const TaskAbility& task : abilities.tasks) {
    tasks.push_back({{"task", task.task}, {"chance", task.chance}});
    tasks.back().update(dofla::to_json(task.result));
    if (task.by_letter) tasks.back()["by_letter"] = dofla::to_json(*task.by_letter);
    if (task.generated) tasks.back()["generated"] = dofla::to_json(*task.generated);
  }
  json["tasks"] = std::move(tasks);
  return json;
}

OrderedJson to_json(const Yardstick& yardstick) {
  OrderedJson texts = OrderedJson::array();
  for (const Divergence& text : yardstick.texts) texts.push_back(dofla::to_json(text));
  return {{"name", yardstick.name},
          {"texts", std::move(texts)},
          {"all", dofla::to_json(yardstick.all)}};
}

OrderedJson to_json(const StudentFidelity& student) {
  OrderedJson texts = OrderedJson::array(), worst = OrderedJson::array();
  for (const TextFidelity& text : student.texts) texts.push_back(to_json(text));
  for (const WorstPassage& passage : student.worst) worst.push_back(to_json(passage));
  return {{"path", student.name},
          {"kind", student.kind},
          {"bytes", student.cost.context_bytes},
          {"verdict", dofla::to_json(student.verdict)},
          {"texts", std::move(texts)},
          {"all", dofla::to_json(student.all)},
          {"attention_error", student.layer_error},
          {"head_error", student.head_error},
          {"cost", to_json(student.cost)},
          {"abilities", to_json(student.abilities)},
          {"agreement", student.agreement ? dofla::to_json(*student.agreement) : OrderedJson()},
          {"worst", std::move(worst)}};
}

}  // namespace

OrderedJson to_json(const Verdict& verdict) {
  OrderedJson findings = OrderedJson::array();
  for (const Finding& finding : verdict.findings)
    findings.push_back(
        {{"about", finding.about},
         {"grade", finding.grade ? OrderedJson(name(*finding.grade)) : OrderedJson()},
         {"words", finding.words}});
  return {{"grade", name(verdict.grade)},
          {"headline", verdict.headline},
          {"findings", std::move(findings)}};
}

OrderedJson to_json(const Controls& controls) {
  OrderedJson json = OrderedJson::array();
  for (const Control& control : controls.measured)
    json.push_back({{"name", name(control.kind)},
                    {"loss", control.loss},
                    {"state_bytes", control.state_bytes}});
  return json;
}

OrderedJson to_json(const Divergence& divergence) {
  return {{"tokens", divergence.tokens},
          {"windows", divergence.windows},
          {"loss", divergence.loss},
          {"teacher_loss", divergence.teacher_loss},
          {"added_stderr", divergence.added_stderr},
          {"perplexity", divergence.perplexity()},
          {"perplexity_ratio", divergence.perplexity_ratio()},
          {"kl", divergence.kl},
          {"kl_stderr", divergence.kl_stderr},
          {"kl_median", divergence.kl_median},
          {"kl_90", divergence.kl_90},
          {"kl_95", divergence.kl_95},
          {"kl_99", divergence.kl_99},
          {"kl_999", divergence.kl_999},
          {"kl_max", divergence.kl_max},
          {"p_change", divergence.p_change},
          {"p_change_rms", divergence.p_change_rms},
          {"same_top", divergence.same_top},
          {"top5_overlap", divergence.top5_overlap},
          {"entropy_change", divergence.entropy_change},
          {"calibration", to_json(divergence.calibration)},
          {"teacher_calibration", to_json(divergence.teacher_calibration)}};
}

OrderedJson to_json(const FidelityReport& report) {
  OrderedJson students = OrderedJson::array();
  for (const StudentFidelity& student : report.students) students.push_back(to_json(student));
  OrderedJson yardsticks = OrderedJson::array();
  for (const Yardstick& yardstick : report.yardsticks) yardsticks.push_back(to_json(yardstick));
  return {{"teacher", report.teacher},
          {"window_tokens", report.window_tokens},
          {"teacher_cost", to_json(report.teacher_cost)},
          {"teacher_abilities", to_json(report.teacher_abilities)},
          {"yardsticks", std::move(yardsticks)},
          {"left_out", report.left_out},
          {"students", std::move(students)}};
}

}  // namespace dofla
