// How a fine-tuning run is kept on disk: the optimizer with all parameters, the parameters of the
// best epoch, losses and accuracies so far.
#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/distill/training_file.h"
#include "dofla/train/finetuner.h"

namespace dofla {
namespace {

constexpr const char* kLoss = "history.loss";
constexpr const char* kAccuracy = "history.accuracy";
constexpr const char* kBest = "best.";

constexpr int64_t kFields = 7;

Tensor to_table(const std::vector<TaskResult>& results) {  // [N, kFields] in F64
  Tensor table({static_cast<int64_t>(results.size()), kFields}, DType::kF64);
  double* row = table.data<double>();
  for (const TaskResult& one : results) {
    const double fields[kFields] = {static_cast<double>(one.questions),
                                    static_cast<double>(one.truncated),
                                    static_cast<double>(one.not_finite),
                                    one.acc.mean,
                                    one.acc.standard_error,
                                    one.acc_norm.mean,
                                    one.acc_norm.standard_error};
    row = std::copy_n(fields, kFields, row);
  }
  return table;
}

std::vector<TaskResult> from_table(const Tensor& table) {
  std::vector<TaskResult> results;
  for (int64_t i = 0; i < table.size(0); ++i) {
    const double* row = table.data<double>() + i * kFields;
    results.push_back({.questions = static_cast<int64_t>(row[0]),
                       .truncated = static_cast<int64_t>(row[1]),
                       .not_finite = static_cast<int64_t>(row[2]),
                       .acc = {row[3], row[4]},
                       .acc_norm = {row[5], row[6]}});
  }
  return results;
}

}  // namespace

void Finetuner::save() {
  if (options_.checkpoint.empty()) return;
  NamedTensors tensors;
  optimizer_.save(tensors);
  for (const auto& [name, tensor] : best_) tensors.emplace_back(kBest + name, tensor);
  Tensor loss({steps_done()}, DType::kF64);
  std::ranges::copy(loss_, loss.data<double>());
  tensors.emplace_back(kLoss, loss);
  tensors.emplace_back(kAccuracy, to_table(accuracy_));
  write_training_file(options_.checkpoint, std::move(tensors), run_);
  saved_step_ = steps_done();
}

void Finetuner::restore() {
  const Safetensors file = open_training_file(options_.checkpoint, run_);
  const std::string where = options_.checkpoint.string();
  const Tensor loss = file.tensor(kLoss), accuracy = file.tensor(kAccuracy);
  if (loss.rank() != 1 || loss.dtype() != DType::kF64 || loss.size(0) > steps())
    fail("{}: {}: expected at most {} numbers, found {}", where, kLoss, steps(),
         to_string(loss.shape()));
  if (accuracy.rank() != 2 || accuracy.dtype() != DType::kF64 || accuracy.size(1) != kFields)
    fail("{}: {}: expected rows of {} numbers, found {}", where, kAccuracy, kFields,
         to_string(accuracy.shape()));
  // An accuracy before the first step and one after each epoch; at step 0 it may still be missing.
  const int64_t judged = 1 + loss.size(0) / steps_per_epoch();
  if (accuracy.size(0) != judged && (loss.size(0) > 0 || accuracy.size(0) > 0))
    fail("{}: {}: expected {} rows, found {}", where, kAccuracy, judged, accuracy.size(0));
  optimizer_.restore(file);
  best_.clear();
  for (const auto& [name, tensor] : optimizer_.parameters())
    if (options_.keep_best && judged > 1)
      best_.emplace_back(name, find_tensor(file, kBest + name, tensor.shape()).clone());
  loss_.assign(loss.data<double>(), loss.data<double>() + loss.count());
  accuracy_ = from_table(accuracy);
  saved_step_ = steps_done();
}

}  // namespace dofla
