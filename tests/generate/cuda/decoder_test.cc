// Decoding in one launch or with recorded steps on a GPU against forward there, which computes each
// operation by itself.
#include "dofla/generate/decoder.h"

#include "dofla/distill/pair_init.h"
#include "dofla/generate/generate.h"
#include "dofla/linear/linear_model.h"
#include "tests/support/fixtures.h"
#include "tests/support/gpu.h"
#include "tests/support/linear_fixture.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

class CudaDecoder : public test::OnGpu {
 protected:
  // About ten values of a layer are rounded to bf16, each by up to 2^-9 and to either side; a norm
  // or a kernel of attention may stretch an error by a small factor.
  static double tolerance(const ModelConfig& config) {
    return 8 * 0x1p-9 * std::sqrt(10 * static_cast<double>(config.layers));
  }
  static Tensor next_logits(const Transformer& model, const Tensor& ids, DecodeState& state) {
    const Tensor hidden = model.forward(ids, {.state = &state, .observer = {}});
    return model.logits(hidden.reshape({ids.count(), model.config().width}));
  }
  // Of every kind on the GPU, with the number of sequences to decode at a time.
  std::vector<std::pair<Transformer, int64_t>> models_and_batches(const std::string& name) const {
    const Checkpoint checkpoint(test::fixtures() / name);
    std::vector<std::pair<Transformer, int64_t>> all;
    for (const int64_t batch : {1, 3, 20}) {
      all.emplace_back(Transformer(checkpoint, gpu), batch);
      for (const FeatureSet& features :
           {test::ragged_features(checkpoint.config()), test::mixed_features(checkpoint.config()),
            test::ragged_features(checkpoint.config(), FeatureMap::kUntied),
            test::hybrid_features(checkpoint.config(), FeatureMap::kPrf, KeyPolicy::kRecent),
            test::hybrid_features(checkpoint.config(), FeatureMap::kUntied, KeyPolicy::kRecent)})
        all.emplace_back(make_linear_model(checkpoint, features, gpu), batch);
    }
    return all;
  }
  // Features that fit the model: its text is then more than noise.
  Transformer wiki_mini() const {
    const Checkpoint checkpoint(test::assets() / "wiki-mini");
    const Transformer teacher(checkpoint);
    PairSampler pairs(fixed_plan(identity_of(teacher.config()), 16), 1, 7);
    teacher.forward(test::some_ids(teacher.config(), 1, 64),
                    {.state = nullptr, .observer = pairs.observer()});
    return make_linear_model(checkpoint, pairs.features(), gpu);
  }
};

// Softmax attention, linear attention, both in one model, and hybrid attention, from whose caches
// keys leave three times.
TEST_F(CudaDecoder, GivesTheLogitsOfForwardForEveryFixture) {
  for (const std::string& name : test::fixture_models())
    for (const auto& [model, batch] : models_and_batches(name)) {
      DecodeState state = model.new_state();
      model.forward(test::some_ids(model.config(), batch, 5), {.state = &state, .observer = {}});
      Decoder decoder(model, state.fork(), batch);
      for (int64_t t = 0; t < 16; ++t) {
        const Tensor next = test::some_ids(model.config(), t + batch, 1).slice(t, t + batch);
        expect_close(decoder.step(test::as_vector(next)), next_logits(model, next, state),
                     tolerance(model.config()),
                     fmt::format("{}, batch {}, token {}", name, batch, t));
      }
      EXPECT_EQ(decoder.state().positions(), state.positions());
    }
}

// Sequences of different lengths in one batch: each gives what forward gives it alone. The longest
// one outgrows the first room that a recording is made for.
TEST_F(CudaDecoder, TakesSequencesOfDifferentLengths) {
  for (const std::string& name : test::fixture_models())
    for (const auto& [model, unused] : models_and_batches(name)) {
      const int64_t context = model.config().context;
      const std::vector<int64_t> lengths = {5, 1, std::min<int64_t>(62, context - 4), 2};
      std::vector<DecodeState> alone;
      for (const int64_t length : lengths)
        next_logits(model, test::some_ids(model.config(), 1, length),
                    alone.emplace_back(model.new_state()));
      Decoder decoder(model, DecodeState::join({&alone[0], &alone[1], &alone[2], &alone[3]}), 4);
      for (int64_t t = 0; t < 4; ++t) {
        const std::vector<int64_t> ids = {3 + t, 9 - t, 2 * t, 7};
        const Tensor found = here(decoder.step(ids));
        for (size_t b = 0; b < ids.size(); ++b)
          expect_close(found.slice(static_cast<int64_t>(b), static_cast<int64_t>(b) + 1),
                       next_logits(model, to_tensor({ids[b]}), alone[b]), tolerance(model.config()),
                       fmt::format("{}, sequence {}", name, b));
      }
    }
}

TEST_F(CudaDecoder, IsUntouchedByWhatHappensBetweenSteps) {
  const Transformer model = wiki_mini();
  for (const int64_t batch : {1, 2}) {
    Decoder alone(model, model.new_state(), batch), disturbed(model, model.new_state(), batch);
    for (int64_t t = 0; t < 8; ++t) {
      std::vector<int64_t> ids = {5 + t, 900 - t};
      ids.resize(static_cast<size_t>(batch));
      const Tensor expected = here(alone.step(ids));
      const Tensor found = disturbed.step(ids);
      // Work of many sizes that would write over memory handed out twice.
      std::vector<Tensor> others;
      for (int64_t bytes = 512; bytes < (1 << 22); bytes *= 2)
        others.push_back(Tensor::zeros({bytes}, DType::kU8, gpu));
      model.forward(test::some_ids(model.config(), 3, 7));
      EXPECT_TRUE(test::same_bits(here(found), expected)) << "batch " << batch << " token " << t;
    }
  }
}

TEST_F(CudaDecoder, TakesOneLaunchATokenWhereItCan) {
  const Transformer model = wiki_mini();
  EXPECT_EQ(Decoder(model, model.new_state(), 1).in_one_launch(), runs_token_programs());
  EXPECT_FALSE(Decoder(model, model.new_state(), 2).in_one_launch());
  const Checkpoint checkpoint(test::assets() / "wiki-mini");
  const Transformer softmax(checkpoint, gpu);
  EXPECT_EQ(Decoder(softmax, softmax.new_state()).in_one_launch(), runs_token_programs());
  for (const FeatureMap map : {FeatureMap::kPrf, FeatureMap::kUntied}) {
    const Transformer hybrid =
        make_linear_model(checkpoint, test::hybrid_features(checkpoint.config(), map), gpu);
    EXPECT_EQ(Decoder(hybrid, hybrid.new_state()).in_one_launch(), runs_token_programs());
  }
}

// The cache outgrows its memory several times.
TEST_F(CudaDecoder, GrowsWithASequence) {
  const Transformer softmax(Checkpoint(test::assets() / "wiki-mini"), gpu);
  const int64_t tokens = std::min<int64_t>(300, softmax.config().context);
  Decoder decoder(softmax, softmax.new_state());
  const Tensor ids = test::some_ids(softmax.config(), 1, tokens);
  const Tensor all = softmax.logits(softmax.forward(ids).reshape({tokens, softmax.config().width}));
  const std::vector<int64_t> each = test::as_vector(ids);
  for (int64_t t = 0; t < tokens; ++t) {
    const Tensor found = decoder.step({each[static_cast<size_t>(t)]});
    if (t % 31 == 0 || t + 1 == tokens)
      expect_close(found, all.slice(t, t + 1), tolerance(softmax.config()),
                   fmt::format("token {}", t));
  }
}

// Where a token stands in a decoder makes no difference to its bits.
TEST_F(CudaDecoder, GivesTheSameBitsFromAnyBeginning) {
  const Transformer model = wiki_mini();
  Decoder first(model, model.new_state());
  first.step({7});
  Decoder second(model, first.state().fork());
  for (const int64_t id : {8, 9})
    EXPECT_TRUE(test::same_bits(here(first.step({id})), here(second.step({id})))) << id;
}

TEST_F(CudaDecoder, GivesItsMemoryBack) {
  const Transformer model = wiki_mini();
  const int64_t before = bytes_in_use(gpu);
  for (const int64_t batch : {1, 4}) {
    {
      Decoder decoder(model, model.new_state(), batch);
      decoder.step(std::vector<int64_t>(static_cast<size_t>(batch), 3));
      EXPECT_GT(bytes_in_use(gpu), before);
    }
    EXPECT_EQ(bytes_in_use(gpu), before) << "batch " << batch;
  }
}

// The text is the one that forward would have given, up to tokens that are as good as equal.
TEST_F(CudaDecoder, GeneratesTheTextOfForward) {
  const Transformer model = wiki_mini();
  GenerateOptions options;
  options.max_tokens = 40;
  options.stop_at_end_of_text = false;
  options.sampler.temperature = 0;
  const TokenIds prompt = test::as_vector(test::some_ids(model.config(), 1, 12));
  const TokenIds text = generate(model, prompt, options).ids;
  EXPECT_EQ(generate(model, prompt, options).ids, text);

  DecodeState state = model.new_state();
  Tensor logits = next_logits(model, to_tensor(prompt), state).slice(11, 12);
  for (const int64_t id : text) {
    const Tensor row = here(logits);
    const float* values = row.data<float>();
    const double best = *std::max_element(values, values + row.count());
    EXPECT_GE(values[id], best - 2 * tolerance(model.config()) * test::largest(row));
    logits = next_logits(model, to_tensor({id}), state);
  }
}

}  // namespace
}  // namespace dofla
