// How a fine-tuning run is kept on disk: the optimizer with all parameters, the parameters of the
// best epoch, losses and judgements so far.
#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/distill/training_file.h"
#include "dofla/train/finetuner.h"

namespace dofla {
namespace {

constexpr const char* kLoss = "history.loss";
constexpr const char* kJudgements = "history.judgements";
constexpr const char* kBest = "best.";

constexpr int64_t kFields = 8;  // of a Judgement: three counts of questions first
constexpr int64_t kCounts = 3;

Tensor to_table(const std::vector<Judgement>& judgements) {  // [N, kFields] in F64
  Tensor table({static_cast<int64_t>(judgements.size()), kFields}, DType::kF64);
  double* row = table.data<double>();
  for (const auto& [score, one] : judgements) {
    const double fields[kFields] = {static_cast<double>(one.questions),
                                    static_cast<double>(one.truncated),
                                    static_cast<double>(one.not_finite),
                                    one.acc.mean,
                                    one.acc.standard_error,
                                    one.acc_norm.mean,
                                    one.acc_norm.standard_error,
                                    score};
    row = std::copy_n(fields, kFields, row);
  }
  return table;
}

std::vector<Judgement> from_table(const Tensor& table, const std::string& where) {
  if (table.rank() != 2 || table.dtype() != DType::kF64 || table.size(1) != kFields)
    fail("{}: {}: expected rows of {} numbers, found {}", where, kJudgements, kFields,
         to_string(table.shape()));
  std::vector<Judgement> judgements;
  for (int64_t i = 0; i < table.size(0); ++i) {
    const double* row = table.data<double>() + i * kFields;
    for (int64_t j = 0; j < kCounts; ++j)
      if (!(row[j] >= 0 && row[j] < 0x1p53))
        fail("{}: {}: expected numbers of questions, found {}", where, kJudgements, row[j]);
    judgements.push_back({.score = row[7],
                          .answers = {.questions = static_cast<int64_t>(row[0]),
                                      .truncated = static_cast<int64_t>(row[1]),
                                      .not_finite = static_cast<int64_t>(row[2]),
                                      .acc = {row[3], row[4]},
                                      .acc_norm = {row[5], row[6]}}});
  }
  return judgements;
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
  tensors.emplace_back(kJudgements, to_table(judgements_));
  write_training_file(options_.checkpoint, std::move(tensors), run_);
  saved_step_ = steps_done();
}

void Finetuner::restore() {
  const Safetensors file = open_training_file(options_.checkpoint, run_);
  const std::string where = options_.checkpoint.string();
  const Tensor loss = file.tensor(kLoss);
  const std::vector<Judgement> judgements = from_table(file.tensor(kJudgements), where);
  if (loss.rank() != 1 || loss.dtype() != DType::kF64 || loss.size(0) > steps())
    fail("{}: {}: expected at most {} numbers, found {}", where, kLoss, steps(),
         to_string(loss.shape()));
  // One before the first step and one after each epoch; at step 0 it may still be missing.
  const auto judged = static_cast<size_t>(1 + loss.size(0) / steps_per_epoch());
  if (judgements.size() != judged && !(loss.count() == 0 && judgements.empty()))
    fail("{}: {}: expected {} rows, found {}", where, kJudgements, judged, judgements.size());
  optimizer_.restore(file);
  model_.follow_parameters();
  best_.clear();
  for (const auto& [name, tensor] : optimizer_.parameters())
    if (options_.keep_best && judged > 1)
      best_.emplace_back(name, find_tensor(file, kBest + name, tensor.shape()).clone());
  loss_.assign(loss.data<double>(), loss.data<double>() + loss.count());
  judgements_ = judgements;
  saved_step_ = steps_done();
}

}  // namespace dofla
