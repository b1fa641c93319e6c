#include "dofla/reproduce/suite.h"

#include <algorithm>
#include <limits>

#include <fmt/ranges.h>

#include "dofla/checkpoint/config_fields.h"
#include "dofla/core/error.h"
#include "dofla/data/tasks/task.h"

namespace dofla {
namespace {

// The fields of one object, which may have no others than those that were asked for.
class SuiteFields : public ConfigFields {
 public:
  SuiteFields(const Json& object, std::string where, std::vector<std::string> known)
      : ConfigFields(object, std::move(where)) {
    for (const auto& [field, value] : object.items())
      if (std::find(known.begin(), known.end(), field) == known.end())
        refuse(printable(field),
               fmt::format("no such field; there are {}", fmt::join(known, ", ")));
  }

  void whole(const char* field, int64_t low, int64_t high, int64_t& value) const {
    if (const Json* found = find(field)) value = whole_number(field, *found, low, high);
  }
  void whole(const char* field, int64_t low, int64_t high, std::optional<int64_t>& value) const {
    if (const Json* found = find(field)) value = whole_number(field, *found, low, high);
  }
  void real(const char* field, double low, double high, double& value) const {
    const auto found = number(field);
    if (!found) return;
    if (!(*found >= low && *found <= high))
      unexpected(field, fmt::format("a number from {} to {}", low, high), *find(field));
    value = *found;
  }
  void real(const char* field, double low, double high, std::optional<double>& value) const {
    if (find(field) == nullptr) return;
    real(field, low, high, value.emplace());
  }

  // A name that `from_name` knows.
  template <class FromName, class Value>
  void named(const char* field, const FromName& from_name, std::string_view expected,
             Value& value) const {
    if (const Json* found = find(field)) value = from_text(field, *found, from_name, expected);
  }

  // A list without repetitions of what `read` makes of its entries.
  template <class Value, class Read>
  void list(const char* field, const Read& read, std::vector<Value>& values) const {
    const Json* found = find(field);
    if (found == nullptr) return;
    if (!found->is_array()) unexpected(field, "a list", *found);
    values.clear();
    for (const Json& entry : *found) {
      const Value value = read(entry);
      if (std::find(values.begin(), values.end(), value) != values.end())
        refuse(field, fmt::format("{} stands there twice", excerpt(entry)));
      values.push_back(value);
    }
  }
  template <class Value, class FromName>
  void names(const char* field, const FromName& from_name, std::string_view expected,
             std::vector<Value>& values) const {
    list(
        field, [&](const Json& entry) { return from_text(field, entry, from_name, expected); },
        values);
  }
  template <class Number>
  void numbers(const char* field, int64_t low, int64_t high, std::vector<Number>& values) const {
    list(
        field,
        [&](const Json& entry) {
          return static_cast<Number>(whole_number(field, entry, low, high));
        },
        values);
    if (values.empty()) refuse(field, "at least one is needed");
  }

 private:
  int64_t whole_number(const char* field, const Json& found, int64_t low, int64_t high) const {
    const bool sound = found.is_number_integer() && found >= low && found <= high;
    if (!sound) unexpected(field, fmt::format("a whole number from {} to {}", low, high), found);
    return found.get<int64_t>();
  }
  template <class FromName>
  auto from_text(const char* field, const Json& found, const FromName& from_name,
                 std::string_view expected) const {
    const auto value =
        found.is_string() ? from_name(found.get_ref<const std::string&>()) : std::nullopt;
    if (!value) unexpected(field, expected, found);
    return *value;
  }
};

constexpr int64_t kMost = ConfigFields::kLargestSize;

std::optional<std::string> task_from_name(const std::string& name) {
  const bool known = std::any_of(tasks().begin(), tasks().end(),
                                 [&](const Task& task) { return task.name == name; });
  return known ? std::optional(name) : std::nullopt;
}

std::optional<FeatureMap> baseline_from_name(const std::string& name) {
  const auto map = find_named<FeatureMap>(name);
  return !map || takes_init(*map) ? std::nullopt : map;
}

std::optional<FeatureMap> trained_from_name(const std::string& name) {
  const auto map = find_named<FeatureMap>(name);
  return map && takes_init(*map) ? map : std::nullopt;
}

void read_dof(const Json& json, const std::string& where, Suite& suite) {
  const SuiteFields fields(json, where + ": dof",
                           {"lambda", "samples", "draws", "sequences", "gram", "power"});
  suite.dof.lambda = fields.positive("lambda", suite.dof.lambda);
  fields.whole("samples", 1, kMost, suite.dof.samples);
  fields.whole("draws", 1, kMost, suite.dof.draws);
  fields.whole("sequences", 1, kMost, suite.dof_sequences);
  fields.named("gram", find_named<GramScale>, one_of_names<GramScale>(), suite.dof.gram);
  fields.real("power", 0, 100, suite.power);
}

void read_exact_keys(const Json& json, const std::string& where, Suite& suite) {
  const SuiteFields fields(json, where + ": exact_keys",
                           {"keys", "sinks", "recent", "block", "policy"});
  int64_t keys = 0;
  fields.whole("keys", 1, kMost, keys);
  if (keys == 0) fields.refuse("keys", "missing");
  KeyPolicy policy = KeyPolicy::kAttended;
  fields.named("policy", find_named<KeyPolicy>, one_of_names<KeyPolicy>(), policy);
  suite.exact = {.keys = keys, .policy = policy};
  fields.whole("sinks", 0, kMost, suite.exact.sinks);
  fields.whole("recent", 1, kMost, suite.exact.recent);
  fields.whole("block", 1, 64, suite.exact.block);
  try {
    require_valid(suite.exact);
  } catch (const std::invalid_argument& problem) {
    fail("{}: {}", fields.where(), problem.what());
  }
}

void read_learning_rates(const Json& json, const std::string& where, Suite& suite) {
  std::vector<std::string> known = all_names<LossKind>();
  known.emplace_back(name(FeatureMap::kDijiang));
  const SuiteFields fields(json, where + ": learning_rates", known);
  for (const auto& [loss, rates] : json.items()) {
    const SuiteFields rate(rates, fields.where() + ": " + loss, {"z", "alpha"});
    LearningRates& read = suite.learning_rates[loss];
    rate.real("z", 0, 1e3, read.z);
    rate.real("alpha", 0, 1e3, read.alpha);
  }
}

void read_equal_time(const Json& json, const std::string& where, Suite& suite) {
  const SuiteFields fields(json, where + ": equal_time", {"loss", "as"});
  const auto one_of_losses = [&](const char* field) {
    std::optional<LossKind> loss;
    fields.named(field, find_named<LossKind>, one_of_names<LossKind>(), loss);
    if (!loss) fields.refuse(field, "missing");
    if (std::find(suite.losses.begin(), suite.losses.end(), *loss) == suite.losses.end())
      fields.refuse(field, fmt::format("{} is not one of the suite's losses", name(*loss)));
    return *loss;
  };
  const EqualTime equal = {.loss = one_of_losses("loss"), .as = one_of_losses("as")};
  if (equal.loss == equal.as) fields.refuse("as", "is the same loss");
  if (suite.steps == 0) fields.refuse("loss", "the suite trains for 0 steps");
  suite.equal_time = equal;
}

void read_tasks(const Json& json, const fs::path& folder, const std::string& where, Suite& suite) {
  const SuiteFields fields(
      json, where + ": tasks",
      {"names", "data", "finetune", "limit", "train_limit", "epochs", "batch", "learning_rate"});
  SuiteTasks& read = suite.tasks.emplace();
  std::vector<std::string> known;
  for (const Task& task : tasks()) known.push_back(task.name);
  const std::string expected = fmt::format("one of {}", fmt::join(known, ", "));
  fields.names("names", task_from_name, expected, read.names);
  if (read.names.empty()) fields.refuse("names", "at least one is needed");
  if (const auto data = fields.text("data")) read.data = folder / *data;
  read.finetune = fields.flag("finetune", read.finetune);
  fields.whole("limit", 1, kMost, read.limit);
  fields.whole("train_limit", 1, kMost, read.train_limit);
  fields.whole("epochs", 1, kMost, read.epochs);
  fields.whole("batch", 1, kMost, read.batch);
  const auto rate = [&](const Json& entry) {
    const double value = entry.is_number() ? entry.get<double>() : -1;
    if (!(value >= 0 && value <= 1e3))
      fields.unexpected("learning_rate", "a number from 0 to 1000, or a list of them", entry);
    return value;
  };
  if (const Json* found = fields.find("learning_rate"); found != nullptr && !found->is_array())
    read.learning_rates = {rate(*found)};
  else
    fields.list("learning_rate", rate, read.learning_rates);
}

void read_paths(const SuiteFields& fields, const fs::path& folder, Suite& suite) {
  const auto place = [&](const char* field, const Json& found) {
    if (!found.is_string() || found.get_ref<const std::string&>().empty())
      fields.unexpected(field, "a path", found);
    return folder / found.get<std::string>();
  };
  if (const Json* teacher = fields.find("teacher")) suite.teacher = place("teacher", *teacher);
  fields.list(
      "data", [&](const Json& entry) { return place("data", entry); }, suite.data);
}

void read_training(const SuiteFields& fields, Suite& suite) {
  fields.whole("length", 2, kMost, suite.length);
  fields.whole("held_out", 1, kMost, suite.held_out);
  fields.whole("steps", 0, kMost, suite.steps);
  fields.whole("batch", 1, int64_t{1} << 20, suite.batch);
  fields.named(
      "features", trained_from_name,
      one_of({std::string(name(FeatureMap::kPrf)), std::string(name(FeatureMap::kUntied))}),
      suite.features);
  fields.named("coordinates", find_named<Coordinates>, one_of_names<Coordinates>(),
               suite.coordinates);
  fields.named("init", find_named<FeatureInit>, one_of_names<FeatureInit>(), suite.init);
  fields.named("mask", find_named<PairMask>, one_of_names<PairMask>(), suite.mask);
}

void read_matrix(const SuiteFields& fields, Suite& suite) {
  fields.numbers("costs", 1, DimensionPlan::kLargestDimension, suite.costs);
  fields.numbers("seeds", 0, std::numeric_limits<int64_t>::max(), suite.seeds);
  fields.names("strategies", find_named<PlanStrategy>, one_of_names<PlanStrategy>(),
               suite.strategies);
  fields.names("losses", find_named<LossKind>, one_of_names<LossKind>(), suite.losses);
  fields.names(
      "baselines", baseline_from_name,
      one_of({std::string(name(FeatureMap::kPerformer)), std::string(name(FeatureMap::kDijiang))}),
      suite.baselines);
}

}  // namespace

Suite read_suite(const fs::path& file) {
  const Json json = load_json(file, Input::kFileOrPipe);
  const std::string where = file.string();
  const SuiteFields fields(
      json, where,
      {"teacher",     "data",      "length",    "held_out",       "costs",      "strategies",
       "losses",      "baselines", "seeds",     "steps",          "batch",      "features",
       "coordinates", "init",      "mask",      "learning_rates", "equal_time", "dof",
       "tasks",       "timing",    "exact_keys"});
  const fs::path folder = file.parent_path();
  Suite suite;
  read_paths(fields, folder, suite);
  read_training(fields, suite);
  read_matrix(fields, suite);
  if (const Json* found = fields.find("exact_keys")) read_exact_keys(*found, where, suite);
  if (const Json* found = fields.find("dof")) read_dof(*found, where, suite);
  if (const Json* found = fields.find("learning_rates")) read_learning_rates(*found, where, suite);
  if (const Json* found = fields.find("equal_time")) read_equal_time(*found, where, suite);
  if (const Json* found = fields.find("tasks")) read_tasks(*found, folder, where, suite);
  if (fields.find("timing") != nullptr) fields.numbers("timing", 2, kMost, suite.timing);
  return suite;
}

}  // namespace dofla
