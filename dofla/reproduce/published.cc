#include "dofla/reproduce/published.h"

#include <algorithm>
#include <array>

namespace dofla::published {
namespace {

constexpr std::array<std::string_view, 7> kTasks = {
    "piqa", "logiqa", "arc_easy", "arc_challenge", "winogrande", "mmlu", "wsc"};
using Accuracies = std::array<double, kTasks.size()>;

// Rows fix, dof, dof-clip; columns direct, softmax, l2.
constexpr std::array<PlanStrategy, 3> kStrategies = {PlanStrategy::kFix, PlanStrategy::kDof,
                                                     PlanStrategy::kDofClip};
constexpr std::array<LossKind, 3> kLosses = {LossKind::kDirect, LossKind::kSoftmax, LossKind::kL2};

constexpr Accuracies kTeacher = {0.5985, 0.3103, 0.3325, 0.3003, 0.5122, 0.2789, 0.6538};
constexpr Accuracies kDijiang = {0.5065, 0.2550, 0.2113, 0.2244, 0.4846, 0.2639, 0.4615};
constexpr Accuracies kPerformer = {0.5468, 0.2934, 0.3039, 0.2747, 0.4996, 0.2517, 0.5962};
constexpr Accuracies kAccuracies[3][3] = {
    {{0.5832, 0.3195, 0.2921, 0.2995, 0.5335, 0.2552, 0.6154},
     {0.5718, 0.2673, 0.2479, 0.3029, 0.5020, 0.2634, 0.6154},
     {0.5822, 0.3195, 0.2483, 0.2773, 0.5107, 0.2520, 0.5962}},
    {{0.5669, 0.3011, 0.3241, 0.3012, 0.5280, 0.2712, 0.6346},
     {0.5751, 0.3026, 0.3224, 0.2995, 0.5328, 0.2564, 0.6442},
     {0.5664, 0.3088, 0.2736, 0.2824, 0.4972, 0.2608, 0.5865}},
    {{0.5892, 0.3164, 0.3136, 0.2952, 0.5075, 0.2993, 0.6346},
     {0.5860, 0.3026, 0.3401, 0.2816, 0.4996, 0.2832, 0.6346},
     {0.5822, 0.3164, 0.2942, 0.3063, 0.5091, 0.2799, 0.5673}}};

constexpr double kNextTokenLoss[3][3] = {
    {3.9657, 5.4082, 6.2453}, {5.2651, 4.0170, 6.6802}, {5.4547, 4.0355, 6.2378}};
constexpr double kInferenceSeconds[3] = {15.589, 15.579, 14.662};
constexpr double kTrainingMilliseconds[3] = {109.4, 90.4, 60.6};

template <class Names, class Name>
std::optional<size_t> place_of(const Names& names, const Name& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<size_t>(found - names.begin());
}

std::optional<double> at(const Accuracies& row, std::string_view task) {
  const auto place = place_of(kTasks, task);
  return place ? std::optional(row[*place]) : std::nullopt;
}

}  // namespace

const std::vector<int64_t>& dimensions() {
  static const std::vector<int64_t> table = {130, 182, 35, 44, 42, 65, 92, 33, 28, 34, 46, 39};
  return table;
}

const std::vector<std::vector<double>>& degrees_of_freedom() {
  static const std::vector<std::vector<double>> table = {
      {4.7, 8.1, 4.5, 2.0, 3.6, 16.2, 4.5, 2.6, 4.1, 6.4, 5.0, 150.0},
      {10.5, 28.5, 155.1, 44.6, 173.8, 51.1, 9.9, 16.5, 17.5, 8.1, 88.9, 19.5},
      {9.9, 8.1, 1.8, 2.7, 3.4, 2.5, 24.5, 5.8, 2.8, 2.6, 12.1, 6.4},
      {15.1, 3.0, 1.4, 1.7, 39.8, 12.1, 1.6, 1.5, 1.5, 2.5, 12.6, 1.9},
      {1.8, 1.8, 11.3, 1.8, 42.1, 2.3, 4.0, 7.1, 22.6, 3.3, 31.6, 1.1},
      {8.9, 3.1, 3.7, 3.5, 3.7, 3.0, 6.9, 7.5, 4.7, 52.4, 21.4, 66.6},
      {3.3, 6.9, 68.9, 14.4, 43.5, 17.2, 107.4, 6.0, 4.3, 1.8, 32.2, 3.0},
      {3.6, 11.9, 3.1, 12.3, 7.6, 17.5, 33.0, 9.1, 4.9, 5.1, 2.3, 12.6},
      {24.9, 6.5, 19.6, 9.3, 5.5, 3.2, 10.2, 3.1, 5.7, 16.7, 22.4, 3.9},
      {18.5, 13.1, 15.9, 3.3, 22.7, 29.9, 14.1, 6.4, 20.2, 5.1, 3.9, 6.2},
      {7.9, 6.6, 26.1, 19.8, 18.2, 3.3, 8.7, 6.7, 43.2, 2.3, 17.1, 13.5},
      {5.1, 21.8, 22.5, 10.6, 30.0, 39.8, 27.2, 31.3, 5.0, 20.0, 2.8, 2.6}};
  return table;
}

std::optional<double> teacher_accuracy(std::string_view task) {
  return at(kTeacher, task);
}

std::optional<double> baseline_accuracy(FeatureMap map, std::string_view task) {
  if (takes_init(map)) return std::nullopt;
  return at(map == FeatureMap::kDijiang ? kDijiang : kPerformer, task);
}

std::optional<double> accuracy(PlanStrategy strategy, LossKind loss, std::string_view task) {
  const auto row = place_of(kStrategies, strategy), column = place_of(kLosses, loss);
  return row && column ? at(kAccuracies[*row][*column], task) : std::nullopt;
}

std::optional<double> inference_seconds(PlanStrategy strategy) {
  const auto place = place_of(kStrategies, strategy);
  return place ? std::optional(kInferenceSeconds[*place]) : std::nullopt;
}

std::optional<double> training_milliseconds(LossKind loss) {
  const auto place = place_of(kLosses, loss);
  return place ? std::optional(kTrainingMilliseconds[*place]) : std::nullopt;
}

double teacher_loss() {
  return 3.3558;
}

std::optional<double> baseline_loss(FeatureMap map) {
  if (takes_init(map)) return std::nullopt;
  return map == FeatureMap::kDijiang ? 5.5965 : 8.1586;
}

std::optional<double> next_token_loss(PlanStrategy strategy, LossKind loss) {
  const auto row = place_of(kStrategies, strategy), column = place_of(kLosses, loss);
  return row && column ? std::optional(kNextTokenLoss[*row][*column]) : std::nullopt;
}

}  // namespace dofla::published
