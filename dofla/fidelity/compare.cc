#include "dofla/fidelity/compare.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/error.h"
#include "dofla/distributed/agreement.h"
#include "dofla/model/finite.h"
#include "dofla/model/softmax_attention.h"

namespace dofla {
namespace {

// Windows of one length that are read at once, and rows whose logits exist at a time: a GPU wants
// many.
int64_t most_windows(const Device& device) {
  return device.is_cuda() ? 16 : 1;
}
int64_t most_rows(const Device& device, int64_t vocabulary) {
  constexpr int64_t kLogits = int64_t{1} << 26;
  return device.is_cuda() ? std::clamp<int64_t>(kLogits / vocabulary, 64, 4096) : 64;
}

// The windows that are left, as batches of equally long ones.
class Batches {
 public:
  Batches(Turns& turns, int64_t most) : turns_(turns), most_(most) {
    more_ = turns_.next(pending_);
  }

  bool read(std::vector<TokenIds>& batch) {
    batch.clear();
    while (more_ && std::ssize(batch) < most_ &&
           (batch.empty() || batch.front().size() == pending_.size())) {
      batch.push_back(pending_);
      more_ = turns_.next(pending_);
    }
    return !batch.empty();
  }

 private:
  Turns& turns_;
  int64_t most_;
  TokenIds pending_;
  bool more_;
};

// The student's hidden states [B·T, C]; what its attention gets wrong on the way is added up.
Tensor read_by_student(const Transformer& student, const Tensor& ids, Compared& compared) {
  const SoftmaxAttention exact(student.config());
  ForwardOptions options;
  options.observer = [&](int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v) {
    const Attention& own = student.attention(layer);
    if (own.grows()) return;  // softmax attention itself
    const std::vector<OutputError> errors =
        head_errors(exact.forward({q, k, v}, {}, nullptr), own.forward({q, k, v}, {}));
    auto& sums = compared.heads[static_cast<size_t>(layer)];
    for (size_t head = 0; head < errors.size(); ++head) sums[head].add(errors[head]);
  };
  return student.forward(ids, options).reshape({ids.count(), student.config().width});
}

void require_finite(const Transformer& model, const TokenIds& window, double loss,
                    const char* what) {
  if (!std::isfinite(loss)) fail_not_finite(model, to_tensor(window), what);
}

class Comparison {
 public:
  Comparison(const Transformer& teacher, const std::vector<const Transformer*>& students)
      : teacher_(teacher), students_(students), result_(students.size()) {
    for (size_t s = 0; s < students.size(); ++s) {
      const ModelConfig& config = students[s]->config();
      if (config.vocabulary != teacher.config().vocabulary)
        fail("cannot compare: the teacher has a vocabulary of {}, the student of {}",
             teacher.config().vocabulary, config.vocabulary);
      result_[s].heads.assign(static_cast<size_t>(config.layers),
                              std::vector<OutputError>(static_cast<size_t>(config.heads)));
    }
  }

  void read(const std::vector<TokenIds>& windows) {
    const Tensor ids = to_batch(windows);
    const int64_t rows = ids.count();
    const Tensor wanted = teacher_.forward(ids).reshape({rows, teacher_.config().width});
    std::vector<Tensor> found;
    for (size_t s = 0; s < students_.size(); ++s)
      found.push_back(read_by_student(*students_[s], ids, result_[s]));
    const Tensor targets = next_ids(ids);
    std::vector<std::vector<TokenStatistics>> all(students_.size());
    const int64_t step = most_rows(teacher_.device(), teacher_.config().vocabulary);
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t end = std::min(begin + step, rows);
      const Tensor logits = teacher_.logits(wanted.slice(begin, end));
      for (size_t s = 0; s < students_.size(); ++s) {
        const auto part = token_statistics(logits, students_[s]->logits(found[s].slice(begin, end)),
                                           targets.slice(begin, end));
        all[s].insert(all[s].end(), part.begin(), part.end());
      }
    }
    for (size_t s = 0; s < students_.size(); ++s) add(windows, *students_[s], all[s], result_[s]);
  }

  std::vector<Compared> finish() && { return std::move(result_); }

 private:
  // What follows every token; nothing that counts follows the last one of a window.
  static Tensor next_ids(const Tensor& ids) {
    Tensor targets({ids.count()}, DType::kI64);
    for (int64_t i = 0; i < ids.count(); ++i)
      targets.data<int64_t>()[i] = (i + 1) % ids.size(1) == 0 ? 0 : ids.data<int64_t>()[i + 1];
    return targets;
  }

  void add(const std::vector<TokenIds>& windows, const Transformer& student,
           const std::vector<TokenStatistics>& rows, Compared& to) const {
    auto row = rows.begin();
    for (const TokenIds& window : windows) {
      const auto end = row + std::ssize(window) - 1;
      for (auto token = row; token != end; ++token) {
        require_finite(teacher_, window, token->teacher_loss, "the teacher's loss");
        require_finite(student, window, token->student_loss, "the student's loss");
      }
      to.windows.emplace_back(row, end);
      row = end + 1;
    }
  }

  const Transformer& teacher_;
  const std::vector<const Transformer*>& students_;
  std::vector<Compared> result_;
};

// What all ranks found, from what each did.
void merge(const Group& group, Compared& compared) {
  if (group.alone()) return;
  std::vector<int64_t> sizes;
  std::vector<TokenStatistics> tokens;
  for (const auto& window : compared.windows) {
    sizes.push_back(std::ssize(window));
    tokens.insert(tokens.end(), window.begin(), window.end());
  }
  const std::vector<std::vector<TokenStatistics>> of_ranks = gather_all(group, tokens);
  std::vector<std::vector<TokenStatistics>::const_iterator> at;
  at.reserve(of_ranks.size());
  for (const auto& rank : of_ranks) at.push_back(rank.begin());
  compared.windows.clear();
  for (const int64_t size : gather_turns(group, sizes)) {
    auto& begin = at[compared.windows.size() % at.size()];
    compared.windows.emplace_back(begin, begin + size);
    begin += size;
  }
  std::vector<double> sums;
  for (const auto& layer : compared.heads)
    for (const OutputError& head : layer) sums.insert(sums.end(), {head.signal, head.error});
  group.sum(sums);
  const double* sum = sums.data();
  for (auto& layer : compared.heads)
    for (OutputError& head : layer) {
      head = {sum[0], sum[1]};
      sum += 2;
    }
}

}  // namespace

std::vector<Compared> compare(const Transformer& teacher,
                              const std::vector<const Transformer*>& students,
                              const NextSequence& next, int64_t total_tokens,
                              const Progress& progress, const Group& group) {
  const Progress pace = at_own_pace(group, progress);
  Comparison comparison(teacher, students);
  Turns turns(group, next);
  together<NotFinite>(group, [&] {
    Batches batches(turns, most_windows(teacher.device()));
    int64_t tokens = 0;
    for (std::vector<TokenIds> windows; batches.read(windows);) {
      comparison.read(windows);
      for (const TokenIds& window : windows) tokens += std::ssize(window) - 1;
      report(pace, {"compare", tokens, total_tokens, "tokens"});
    }
  });
  turns.require_same();
  std::vector<Compared> result = std::move(comparison).finish();
  for (Compared& compared : result) merge(group, compared);
  require(result.empty() || !result.front().windows.empty(), "compare: no text");
  return result;
}

double relative(const OutputError& error) {
  return error.error == 0 ? 0 : std::sqrt(error.error / error.signal);
}

std::vector<double> layer_errors(const Compared& compared) {
  std::vector<double> errors;
  for (const std::vector<OutputError>& layer : compared.heads) {
    OutputError sum;
    for (const OutputError& head : layer) sum.add(head);
    errors.push_back(relative(sum));
  }
  return errors;
}

}  // namespace dofla
