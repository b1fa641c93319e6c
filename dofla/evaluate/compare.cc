#include "dofla/evaluate/compare.h"

#include <cmath>

#include "dofla/core/error.h"
#include "dofla/evaluate/token_divergence.h"
#include "dofla/model/finite.h"

namespace dofla {
namespace {

void require_comparable(const ModelConfig& teacher, const ModelConfig& student) {
  if (teacher.vocabulary != student.vocabulary)
    fail("cannot compare: the teacher has a vocabulary of {}, the student of {}",
         teacher.vocabulary, student.vocabulary);
  if (teacher.layers != student.layers || teacher.heads != student.heads ||
      teacher.head_size != student.head_size)
    fail(
        "cannot compare: the teacher has {} layers of {} heads of size {}, the student {} of {} "
        "of size {}",
        teacher.layers, teacher.heads, teacher.head_size, student.layers, student.heads,
        student.head_size);
}

}  // namespace

Comparison compare(const Transformer& teacher, const Transformer& student, const NextSequence& next,
                   int64_t total_tokens, const Progress& progress) {
  require_comparable(teacher.config(), student.config());
  std::vector<OutputError> layers(static_cast<size_t>(teacher.config().layers));
  ForwardOptions options;
  options.observer = [&](int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v) {
    layers[static_cast<size_t>(layer)].add(
        output_error(teacher.attention(layer).forward({q, k, v}, {}),
                     student.attention(layer).forward({q, k, v}, {})));
  };
  Divergence sum;
  Comparison result;
  for (TokenIds sequence; next(sequence);) {
    const Tensor ids = to_tensor(sequence);
    sum.add(token_divergence(teacher, teacher.forward(ids, options), student, student.forward(ids),
                             ids));
    if (!std::isfinite(sum.teacher_loss)) fail_not_finite(teacher, ids, "the teacher's loss");
    if (!std::isfinite(sum.student_loss)) fail_not_finite(student, ids, "the student's loss");
    result.tokens += ids.size(1) - 1;
    report(progress, {"compare", result.tokens, total_tokens, "tokens"});
  }
  require(result.tokens > 0, "compare: no text");
  const double count = static_cast<double>(result.tokens);
  result.teacher_loss = sum.teacher_loss / count;
  result.student_loss = sum.student_loss / count;
  result.kl = sum.kl / count;
  result.top1_agreement = static_cast<double>(sum.agree) / count;
  for (const OutputError& layer : layers)
    result.attention_error.push_back(std::sqrt(layer.error / layer.signal));
  return result;
}

}  // namespace dofla
