#include "dofla/reproduce/task_runs.h"

#include <limits>

#include "dofla/checkpoint/config_fields.h"
#include "dofla/checkpoint/tokenizer.h"
#include "dofla/core/error.h"
#include "dofla/evaluate/tasks.h"
#include "dofla/linear/linear_model.h"
#include "dofla/pipeline/finetune.h"
#include "dofla/reproduce/student_runs.h"

namespace dofla {
namespace {

constexpr double kPause = 60;  // seconds between checkpoints: most runs are done sooner

// Who answers which questions.
struct Answering {
  const Study& study;
  const RunFolder& folder;
  std::shared_ptr<const FinetuneQuestions> questions;
  std::optional<Student> student;  // else the teacher
  std::optional<double> rate;      // of the teacher, one of several to choose from
};

std::string run_name(const std::string& task, const Student* student) {
  return fmt::format("task-{}-{}", task, student == nullptr ? "teacher" : student->name());
}

std::string rate_name(const std::string& task, double rate) {
  return fmt::format("{}-lr{:g}", run_name(task, nullptr), rate);
}

std::shared_ptr<const FinetuneQuestions> read_files(const SuiteTasks& suite,
                                                    const std::string& name) {
  const Task& task = find_task(name);
  if (suite.finetune)
    return std::make_shared<const FinetuneQuestions>(
        read_finetune_questions(task, suite.data, suite.train_limit, suite.limit));
  const TaskSplit& split = find_split(task, task.evaluated);
  return std::make_shared<const FinetuneQuestions>(FinetuneQuestions{
      &task, {}, evenly_spread(read_questions(task, split, suite.data), suite.limit)});
}

FinetuneOptions finetune_options(const Answering& run) {
  const SuiteTasks& suite = *run.study.suite.tasks;
  const std::string& task = run.questions->task->name;
  FinetuneOptions options = paper_finetune_options(task, run.study.teacher.config().model_type);
  options.epochs = suite.epochs.value_or(options.epochs);
  options.batch = suite.batch.value_or(options.batch);
  const std::vector<double>& rates = suite.learning_rates;
  if (rates.size() == 1) options.learning_rate = rates.front();
  if (rates.size() > 1)
    options.learning_rate =
        run.rate ? *run.rate
                 : run.folder.result(run_name(task, nullptr)).at("learning_rate").get<double>();
  options.seed = run.study.suite.seeds.front();
  return options;
}

Json settings_of(const Answering& run) {
  Json settings = {{"teacher", run.study.teacher_line()},
                   {"device", run.study.device.description()},
                   {"task", run.questions->task->name},
                   {"split", run.questions->task->evaluated},
                   {"questions", run.questions->judged.size()}};
  if (run.student) {
    // Another student of that name answers anew; its loss stands for its features.
    const Json& made = run.folder.result(run.student->name());
    settings["student"] = run.folder.find(run.student->name())->settings;
    settings["student_loss"] = made.value("student_loss", Json());
  }
  if (run.study.suite.tasks->finetune) {
    const FinetuneOptions options = finetune_options(run);
    settings["finetune"] = {{"split", run.questions->task->trained},
                            {"questions", run.questions->train.size()},
                            {"epochs", options.epochs},
                            {"batch", options.batch},
                            {"learning_rate", options.learning_rate},
                            {"seed", options.seed}};
  }
  return settings;
}

Json to_json(const TaskResult& result) {
  return {{"acc", result.acc.mean},           {"acc_stderr", result.acc.standard_error},
          {"acc_norm", result.acc_norm.mean}, {"acc_norm_stderr", result.acc_norm.standard_error},
          {"truncated", result.truncated},    {"not_finite", result.not_finite}};
}

Transformer model_of(const Answering& run, DType gpu_weights) {
  const Study& study = run.study;
  return run.student ? make_linear_model(study.teacher, load_student(study, *run.student),
                                         study.device, gpu_weights)
                     : Transformer(study.teacher, study.device, gpu_weights);
}

Json answer(const Answering& run, const std::string& name, const Progress& progress) {
  const FinetuneQuestions& questions = *run.questions;
  const ModelConfig& config = run.study.teacher.config();
  const Tokenizer tokenizer = Tokenizer::load(run.study.teacher.folder());
  const auto judged = encode_questions(questions.judged, tokenizer, config);
  Json result = {{"chance", chance(questions.judged)}};
  if (!run.study.suite.tasks->finetune) {
    result["zero_shot"] = to_json(evaluate_task(model_of(run, DType::kBF16), judged, progress));
    return result;
  }
  FinetuneOptions options = finetune_options(run);
  options.run = settings_of(run);
  options.part_tokens = part_tokens_for(run.study.device);
  options.checkpoint = training_file(run.study, name, options.run);
  options.resume = fs::exists(options.checkpoint);
  options.checkpoint_pause = kPause;
  Transformer model = model_of(run, DType::kF32);
  const auto train = encode_questions(questions.train, tokenizer, config);
  const FinetuneResult tuned =
      finetune(model, examples_of(train), options, judge_by(judged, progress), progress);
  fs::remove(options.checkpoint);
  result["zero_shot"] = to_json(tuned.before.answers);
  result["finetuned"] = to_json(tuned.kept_judgement().answers);
  result["kept_epoch"] = tuned.kept;  // 0: all were worse than before
  result["skipped_steps"] = tuned.skipped();
  return result;
}

// Settings and result of the teacher's run where there are several rates: what it was with the best
// of them, the first of equals.
Json all_rates(const Answering& run) {
  Json settings = Json::array();
  for (const double rate : run.study.suite.tasks->learning_rates) {
    const std::string name = rate_name(run.questions->task->name, rate);
    run.folder.result(name);  // which throws if that run is missing or failed
    settings.push_back(run.folder.find(name)->settings);
  }
  return settings;
}

Json best_rate(const Answering& run) {
  Json best, tried;
  for (const double rate : run.study.suite.tasks->learning_rates) {
    Json result = run.folder.result(rate_name(run.questions->task->name, rate));
    result["learning_rate"] = rate;
    const double accuracy = result.at("finetuned").at("acc");
    tried.push_back({{"learning_rate", rate}, {"acc", accuracy}});
    if (best.is_null() || accuracy > best["finetuned"]["acc"].get<double>())
      best = std::move(result);
  }
  best["tried"] = std::move(tried);
  return best;
}

Accuracy read_accuracy(const Json& json, const std::string& where) {
  const ConfigFields fields(json, where);
  const auto mean = fields.number("acc");
  if (!mean) fields.refuse("acc", "missing; remove the record to have it made again");
  // JSON has no NaN: the error of a single question is null.
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  return {*mean, fields.number("acc_stderr").value_or(kUnknown)};
}

}  // namespace

std::vector<Student> answering_students(const Suite& suite) {
  std::vector<Student> all = students(suite);
  std::erase_if(all, [&](const Student& student) {
    return student.seed != suite.seeds.front() || student.equal_time;
  });
  return all;
}

std::vector<Run> task_runs(const Study& study, const RunFolder& folder) {
  std::vector<Run> runs;
  if (!study.suite.tasks || study.suite.tasks->data.empty()) return runs;
  for (const std::string& task : study.suite.tasks->names) {
    const auto questions = read_files(*study.suite.tasks, task);
    const auto add = [&](const std::string& name, const Answering& run) {
      runs.push_back(
          {name, "task-" + task, [run] { return settings_of(run); },
           [run, name](const Progress& progress) { return answer(run, name, progress); }});
    };
    const Answering teacher = {study, folder, questions, std::nullopt, std::nullopt};
    if (const auto& rates = study.suite.tasks->learning_rates;
        study.suite.tasks->finetune && rates.size() > 1) {
      for (const double rate : rates)
        add(rate_name(task, rate), {study, folder, questions, std::nullopt, rate});
      runs.push_back({run_name(task, nullptr), "task-rate",
                      [teacher] { return all_rates(teacher); },
                      [teacher](const Progress&) { return best_rate(teacher); }});
    } else {
      add(run_name(task, nullptr), teacher);
    }
    for (const Student& student : answering_students(study.suite))
      add(run_name(task, &student), {study, folder, questions, student, std::nullopt});
  }
  return runs;
}

TaskAccuracy read_task(const RunFolder& folder, const std::string& task, const Student* student) {
  const std::string name = run_name(task, student);
  const ConfigFields fields(folder.result(name), name);
  const auto part = [&](const char* field) -> const Json& {
    const Json* found = fields.find(field);
    if (found == nullptr) fields.refuse(field, "missing; remove the record to have it made again");
    return *found;
  };
  TaskAccuracy accuracy = {.chance = fields.number("chance").value_or(0),
                           .zero_shot = read_accuracy(part("zero_shot"), name + ": zero_shot"),
                           .finetuned = {}};
  if (fields.find("finetuned") != nullptr)
    accuracy.finetuned = read_accuracy(part("finetuned"), name + ": finetuned");
  return accuracy;
}

}  // namespace dofla
