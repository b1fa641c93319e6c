#include "dofla/checkpoint/same_vocabulary.h"

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/core/error.h"

namespace dofla {

void require_same_vocabulary(const Checkpoint& student, const Checkpoint& teacher) {
  const std::string own = student.folder().string(), other = teacher.folder().string();
  const int64_t count = student.config().vocabulary, expected = teacher.config().vocabulary;
  if (count != expected)
    fail("{}: a vocabulary of {}, that of {} has {}: a student has the tokens of its teacher", own,
         count, other, expected);
  const auto tokens = Tokenizer::find(student.folder()), wanted = Tokenizer::find(teacher.folder());
  if (!tokens || !wanted || tokenizer_fingerprint(own) == tokenizer_fingerprint(other)) return;
  for (int64_t id = 0; id < count; ++id) {
    const auto token = tokens->token(id), as = wanted->token(id);
    if (token && as && *token != *as)
      fail("{}: token {} is {}, that of {} is {}: a student has the tokens of its teacher", own, id,
           printable(*token), other, printable(*as));
  }
}

}  // namespace dofla
