// How a fine-tuning run is kept on disk: losses and judgements so far, and of what is large only
// what it takes to go on. Before the first step that is nothing, for the run begins with the model;
// then the optimizer with all parameters, and those of the best epoch, if it is better than the
// beginning; after the last step the parameters that are kept, unless they are those of the
// beginning.
#include <algorithm>

#include "dofla/checkpoint/fingerprint.h"
#include "dofla/core/error.h"
#include "dofla/distill/training_file.h"
#include "dofla/distributed/agreement.h"
#include "dofla/train/finetuner.h"

namespace dofla {
namespace {

constexpr const char* kLoss = "history.loss";
constexpr const char* kJudgements = "history.judgements";
constexpr const char* kBest = "best.";  // and the name of a parameter

constexpr int64_t kFields = 9;  // of a Judgement: three counts of questions first
constexpr int64_t kCounts = 3;

Tensor to_table(const std::vector<Judgement>& judgements) {  // [N, kFields] in F64
  Tensor table({static_cast<int64_t>(judgements.size()), kFields}, DType::kF64);
  double* row = table.data<double>();
  for (const auto& [score, text_loss, one] : judgements) {
    const double fields[kFields] = {static_cast<double>(one.questions),
                                    static_cast<double>(one.truncated),
                                    static_cast<double>(one.not_finite),
                                    one.acc.mean,
                                    one.acc.standard_error,
                                    one.acc_norm.mean,
                                    one.acc_norm.standard_error,
                                    score,
                                    text_loss};
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
                          .loss = row[8],
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
  const bool first = options_.group.is_first();
  if (judgements_.empty() && first) WholeFile(options_.checkpoint).reserve(largest_checkpoint());
  NamedTensors tensors;
  if (steps_done() > 0 && !is_over()) optimizer_.save(tensors);
  if (kept() > 0 && (best_ || is_over()))
    optimizer_.save_copy(kBest, best_ ? *best_ : optimizer_.copy(), tensors);
  saved_step_ = steps_done();
  if (!first) return;
  Tensor loss({steps_done()}, DType::kF64);
  std::ranges::copy(loss_, loss.data<double>());
  tensors.emplace_back(kLoss, loss);
  tensors.emplace_back(kJudgements, to_table(judgements_));
  write_training_file(options_.checkpoint, std::move(tensors), run_);
}

// Of parameters, two moments of each and those of the best epoch.
int64_t Finetuner::largest_checkpoint() const {
  int64_t count = 0;
  for (const auto& [name, parameter] : optimizer_.parameters()) count += parameter.count();
  const int64_t moment = size_in_bytes(dtype_of(options_.moments));
  return count * ((options_.keep_best ? 8 : 4) + 2 * moment);
}

void Finetuner::restore() {
  const Safetensors file = open_training_file(options_.checkpoint, run_);
  const std::string where = options_.checkpoint.string();
  const Tensor loss = file.tensor(kLoss);
  const std::vector<Judgement> judgements = from_table(file.tensor(kJudgements), where);
  if (loss.rank() != 1 || loss.dtype() != DType::kF64 || loss.size(0) > steps())
    fail("{}: {}: expected at most {} numbers, found {}", where, kLoss, steps(),
         to_string(loss.shape()));
  // One before the first step and one after each epoch; the last may still be missing.
  const auto judged = static_cast<size_t>(1 + loss.size(0) / steps_per_epoch());
  const bool waits = loss.size(0) % steps_per_epoch() == 0 && judgements.size() + 1 == judged;
  if (judgements.size() != judged && !waits)
    fail("{}: {}: expected {} rows, found {}", where, kJudgements, judged, judgements.size());
  loss_.assign(loss.data<double>(), loss.data<double>() + loss.count());
  judgements_ = judgements;
  saved_step_ = steps_done();
  best_.reset();
  // The model is still as the run began with it.
  if (options_.keep_best && !judgements_.empty() && kept() == 0) best_ = optimizer_.copy();
  if (steps_done() > 0) restore_parameters(file);
  if (!options_.group.alone())
    require_same(
        options_.group, "checkpoint",
        fmt::format("{} steps, {}", steps_done(), fingerprint_of(optimizer_.parameters())));
}

void Finetuner::restore_parameters(const Safetensors& file) {
  if (!is_over()) optimizer_.restore(file);
  if (is_over() && kept() > 0)
    optimizer_.take(optimizer_.restore_copy(kBest, file));
  else if (options_.keep_best && kept() > 0)
    best_ = optimizer_.restore_copy(kBest, file);
  follow_optimizer();
}

}  // namespace dofla
