#include "dofla/pipeline/compare.h"

#include <array>
#include <memory>

#include "dofla/checkpoint/same_vocabulary.h"
#include "dofla/distributed/agreement.h"
#include "dofla/linear/linear_model.h"
#include "dofla/model/rounded_weights.h"

namespace dofla {
namespace {

// The teacher's weights rounded to so many: a yardstick that everybody knows.
constexpr std::array kYardstickBits = {8, 4};

// A model that is compared, and what it is called.
struct NamedModel {
  std::string name;
  Transformer model;
  FeatureSet features;

  NamedModel(const Checkpoint& checkpoint, const Device& device)
      : name(checkpoint.folder().string()),
        model(load_model(checkpoint, device)),
        features(is_linear(checkpoint) ? load_features(checkpoint) : FeatureSet()) {}
  ModelToCompare to_compare() { return {name, &model, features}; }
};

}  // namespace

FidelityReport compare_models(const Checkpoint& teacher,
                              const std::vector<const Checkpoint*>& students,
                              const CompareInput& input, FidelitySuite suite, const Device& device,
                              const Progress& progress, const Group& group) {
  require_same_weights(group, teacher);
  for (const Checkpoint* student : students) require_same_weights(group, *student);
  const Tokenizer tokenizer = Tokenizer::load(teacher.folder());
  NamedModel own(teacher, device);
  std::vector<std::unique_ptr<NamedModel>> loaded;
  std::vector<std::unique_ptr<Transformer>> rounded;
  FidelityInput all = {.teacher = own.to_compare(),
                       .students = {},
                       .yardsticks = {},
                       .texts = input.texts,
                       .questions = input.questions};
  for (size_t s = 0; s < students.size(); ++s) {
    require_same_vocabulary(*students[s], teacher);
    loaded.push_back(std::make_unique<NamedModel>(*students[s], device));
    all.students.push_back(loaded.back()->to_compare());
    if (!input.trained_on.empty()) all.students.back().trained_on = input.trained_on[s];
  }
  for (const int bits : kYardstickBits) {
    rounded.push_back(
        std::make_unique<Transformer>(load_model(with_rounded_weights(teacher, bits), device)));
    all.yardsticks.push_back({fmt::format("{} bits", bits), rounded.back().get(), {}});
  }
  FidelityReport report = measure_fidelity(all, tokenizer, options_of(suite), progress, group);
  report.left_out = input.left_out;
  teacher.require_unchanged();
  for (const Checkpoint* student : students) student->require_unchanged();
  return report;
}

}  // namespace dofla
