// Last words and letters on a GPU, which reads many at once, against the CPU.
#include "dofla/evaluate/answers.h"

#include "dofla/evaluate/last_words.h"
#include "dofla/linear/linear_model.h"
#include "dofla/model/rounded_weights.h"
#include "tests/support/model_on_gpu.h"

namespace dofla {
namespace {

class CudaAnswers : public test::ModelOnGpu {
 protected:
  const Checkpoint checkpoint{wiki_mini};
  const Tokenizer tokenizer = Tokenizer::load(wiki_mini);
  const Encode encode = [this](std::string_view text) { return tokenizer.encode(text, false); };

  std::vector<EncodedQuestion> some_words() const {
    const std::vector<Question> texts = {{{"The town lies in the north of the"}, {"country"}, 0},
                                         {{"It was built in the"}, {"nineteenth century"}, 0},
                                         {{"He was born in New"}, {"York"}, 0},
                                         {{"The United"}, {"States"}, 0}};
    return encode_questions(texts, encode, checkpoint.config());
  }
};

TEST_F(CudaAnswers, LastWordsAreThoseOfTheCpu) {
  const Transformer cpu(checkpoint), there(checkpoint, gpu, DType::kF32);
  const LastWords wanted = evaluate_last_words(cpu, some_words()),
                  found = evaluate_last_words(there, some_words());
  EXPECT_EQ(found.words, wanted.words);
  EXPECT_EQ(found.acc.mean, wanted.acc.mean);
  EXPECT_NEAR(found.loss, wanted.loss, 1e-3);
}

TEST_F(CudaAnswers, LettersAreThoseOfTheCpu) {
  const std::vector<Question> questions = {
      {{}, {}, 2, "Answer: C\nAnswer: B\nWhich bird swims?\n", {"a hen", "an owl", "a duck"}},
      {{}, {}, 0, "Answer: B\nAnswer: B\nWhat is wet?\n", {"water", "sand", "air", "fire"}}};
  const Transformer cpu(checkpoint), there(checkpoint, gpu, DType::kF32);
  for (const AnswerBy by : {AnswerBy::kLikelihood, AnswerBy::kGeneration}) {
    const LetteredResult wanted = evaluate_letters(cpu, tokenizer, questions, by),
                         found = evaluate_letters(there, tokenizer, questions, by);
    EXPECT_EQ(found.asked, 7);
    EXPECT_EQ(found.unanswered, wanted.unanswered) << name(by);
    EXPECT_EQ(found.acc.mean, wanted.acc.mean) << name(by);
    EXPECT_EQ(found.same_option, wanted.same_option) << name(by);
  }
}

TEST_F(CudaAnswers, RoundedWeightsAreThoseOfTheCpu) {
  const Checkpoint rounded = with_rounded_weights(checkpoint, 4);
  const double wanted = evaluate_last_words(Transformer(rounded), some_words()).loss,
               exact = evaluate_last_words(Transformer(checkpoint), some_words()).loss;
  EXPECT_NEAR(evaluate_last_words(Transformer(rounded, gpu, DType::kF32), some_words()).loss,
              wanted, 1e-3);
  EXPECT_NEAR(evaluate_last_words(Transformer(rounded, gpu), some_words()).loss, wanted, 0.05)
      << "in BF16";
  EXPECT_GT(std::abs(wanted - exact), 0.01) << "something was rounded";
}

}  // namespace
}  // namespace dofla
