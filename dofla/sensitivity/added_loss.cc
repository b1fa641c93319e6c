#include "dofla/sensitivity/added_loss.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "dofla/distributed/agreement.h"
#include "dofla/evaluate/next_token.h"
#include "dofla/linear/hybrid_attention.h"
#include "dofla/linear/linear_model.h"
#include "dofla/model/next_token_gradient.h"
#include "dofla/model/softmax_attention.h"
#include "dofla/ops/divergence.h"

namespace dofla {
namespace {

// Softmax attention whose backward shows what it is given.
class ObservedAttention : public SoftmaxAttention {
 public:
  using See = std::function<void(const Heads& heads,
                                 const Tensor& out,         // [B, T, H, D]
                                 const Tensor& grad_out)>;  // [B, T, H, D]

  ObservedAttention(const ModelConfig& config, See see)
      : SoftmaxAttention(config), see_(std::move(see)) {}

  AttentionGradients backward(const Heads& heads, const AttentionTape& tape, const Tensor& grad_out,
                              const GradientBuffers& buffers) const override {
    see_(heads, tape.out, grad_out);
    return SoftmaxAttention::backward(heads, tape, grad_out, buffers);
  }

 private:
  See see_;
};

// Sums over the windows of the gradient times the change g·δ of a head's output: its squares
// position by position, and the squares of its sums over whole windows.
struct Changes {
  std::array<double, 2> sums = {};  // these two

  // The first takes the errors of positions as independent, the second as they come but with a
  // single number a window: the mean of both, of their logarithms.
  double size() const { return std::sqrt(sums[0] * sums[1]); }
};

// Adds the changes of one window to those of its heads.
void add_changes(const Tensor& from, const Tensor& to, const Tensor& grad,  // [1, T, H, D]
                 std::vector<Changes>& heads) {
  const int64_t tokens = from.size(1), query_heads = from.size(2), size = from.size(3);
  const int64_t group = query_heads / static_cast<int64_t>(heads.size());
  for (size_t head = 0; head < heads.size(); ++head) {
    double sum = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      // The query heads that share a state lie together.
      const int64_t begin = (t * query_heads + static_cast<int64_t>(head) * group) * size;
      double product = 0;
      for (int64_t i = begin; i < begin + group * size; ++i)
        product += double{grad.data<float>()[i]} *
                   (double{to.data<float>()[i]} - double{from.data<float>()[i]});
      sum += product;
      heads[head].sums[0] += product * product;
    }
    heads[head].sums[1] += sum * sum;
  }
}

// Over the windows of all ranks.
void sum_changes(const Group& group, std::vector<std::vector<std::vector<Changes>>>& of_layers) {
  std::vector<double> all;
  const auto each = [&](const auto& visit) {
    for (auto& layer : of_layers)
      for (auto& set : layer)
        for (Changes& head : set)
          for (double& sum : head.sums) visit(sum);
  };
  each([&](double sum) { all.push_back(sum); });
  group.sum(all);
  auto next = all.begin();
  each([&](double& sum) { sum = *next++; });
}

// While it lives, one layer of the teacher has these features.
class ExchangedLayer {
 public:
  ExchangedLayer(Transformer& teacher, const FeatureSet& features, size_t layer)
      : teacher_(teacher), layer_(static_cast<int64_t>(layer)) {
    own_ = teacher.exchange_attention(
        layer_, make_attention(teacher.config(), features.layers[layer].to(teacher.device()),
                               exact_keys_of(features.exact, layer)));
  }
  ~ExchangedLayer() { teacher_.exchange_attention(layer_, std::move(own_)); }
  ExchangedLayer(const ExchangedLayer&) = delete;
  ExchangedLayer& operator=(const ExchangedLayer&) = delete;

 private:
  Transformer& teacher_;
  int64_t layer_;
  std::unique_ptr<Attention> own_;
};

// While it lives, all layers that these features are for have them.
class ExchangedLayers {
 public:
  ExchangedLayers(Transformer& teacher, const FeatureSet* features) {
    for (size_t layer = 0; features != nullptr && layer < features->layers.size(); ++layer)
      if (!keeps_softmax(*features, layer))
        layers_.push_back(std::make_unique<ExchangedLayer>(teacher, *features, layer));
  }

 private:
  std::vector<std::unique_ptr<ExchangedLayer>> layers_;
};

Tensor here(const Tensor& tensor) {
  return tensor.to(Device()).to(DType::kF32);
}

// The outputs, [1, T, C]; the tape has the inputs of all blocks.
Tensor forward_with_inputs(const Transformer& model, const Tensor& window, Tape& tape) {
  tape = {.recompute = true, .ids = {}, .blocks = {}, .last = {}};
  ForwardOptions whole;
  whole.tape = &tape;
  return model.forward(window, whole);
}

// Σ KL over the last `judged` tokens of a window, which are predicted from these outputs, [1, T,
// C], for every changed one. Only attention differs: one model turns all into logits.
std::vector<double> divergences(const Transformer& model, const Tensor& own,
                                const std::vector<Tensor>& changed, const Tensor& ids,  // [1, T]
                                int64_t judged) {
  constexpr int64_t kRows = 256;  // logits of so many tokens exist at a time
  const int64_t tokens = ids.size(1), width = model.config().width;
  const auto logits = [&](const Tensor& out, int64_t begin, int64_t end) {
    return model.logits(out.reshape({tokens, width}).slice(begin, end));
  };
  const Tensor targets = ids.reshape({tokens}).slice(1, tokens);
  std::vector<double> sums(changed.size(), 0);
  for (int64_t begin = tokens - 1 - judged; begin + 1 < tokens; begin += kRows) {
    const int64_t end = std::min(begin + kRows, tokens - 1);
    const Tensor said = logits(own, begin, end);
    for (size_t i = 0; i < changed.size(); ++i) {
      if (!changed[i].defined()) continue;
      for (const TokenStatistics& token :
           token_statistics(said, logits(changed[i], begin, end), targets.slice(begin, end)))
        sums[i] += token.kl;
    }
  }
  return sums;
}

std::vector<double> shares_of(const std::vector<Changes>& heads) {
  double sum = 0;
  for (const Changes& head : heads) sum += head.size();
  std::vector<double> shares;
  shares.reserve(heads.size());
  for (const Changes& head : heads)  // without any change all are alike
    shares.push_back(sum > 0 ? head.size() / sum : 1 / static_cast<double>(heads.size()));
  return shares;
}

}  // namespace

double mean_loss(const Transformer& model, const Tensor& ids, const Group& group) {
  std::vector<TokenIds> windows;
  for (int64_t b = 0; b < ids.size(0); ++b) {
    const int64_t* row = ids.data<int64_t>() + b * ids.size(1);
    windows.emplace_back(row, row + ids.size(1));
  }
  return evaluate_next_token(model, each_of(windows), 0, {}, group).loss;
}

std::vector<std::vector<double>> loss_added_by_layers(
    Transformer& teacher, const std::vector<FeatureSet>& sets, const Tensor& ids,
    const AddedLossOptions& options, const Progress& progress, const Group& group) {
  const auto layers = static_cast<size_t>(teacher.config().layers);
  const std::string_view stage = options.stage;
  const int64_t counted = options.judged.value_or(ids.size(1) - 1);
  require(counted >= 1 && counted < ids.size(1), "{} of {} tokens are to be judged", counted,
          ids.size(1));
  std::vector<std::vector<double>> added(sets.size(), std::vector<double>(layers, 0));
  const Share mine = group.share(ids.size(0));
  const Progress pace = at_own_pace(group, progress);
  const int64_t total = ids.size(0) * std::ssize(sets) * teacher.config().layers;
  int64_t done = 0;
  for (int64_t b = mine.begin; b < mine.end; ++b) {
    const Tensor window = ids.slice(b, b + 1);
    Tape tape;
    const Tensor own = forward_with_inputs(teacher, window, tape);
    const ExchangedLayers others(teacher, options.others);
    if (options.others != nullptr) forward_with_inputs(teacher, window, tape);
    for (size_t set = 0; set < sets.size(); ++set) {
      std::vector<Tensor> changed(layers);
      for (size_t layer = 0; layer < layers; ++layer) {
        if (!keeps_softmax(sets[set], layer)) {
          ForwardOptions rest;  // what comes before the layer stays as it is
          rest.first_block = static_cast<int64_t>(layer);
          rest.x = tape.blocks[layer].x;
          const ExchangedLayer exchanged(teacher, sets[set], layer);
          changed[layer] = teacher.forward(window, rest);
        }
        report(pace, {stage, ++done, total, "layers"});
      }
      const std::vector<double> sums = divergences(teacher, own, changed, window, counted);
      for (size_t layer = 0; layer < layers; ++layer) added[set][layer] += sums[layer];
    }
  }
  report(group, progress, {stage, total, total, "layers"});
  for (size_t set = 0; set < sets.size(); ++set) {
    group.sum(added[set]);
    for (size_t layer = 0; layer < layers; ++layer) {
      if (!std::isfinite(added[set][layer])) {  // names the layer at fault
        const ExchangedLayer exchanged(teacher, sets[set], layer);
        mean_loss(teacher, ids);
      }
      added[set][layer] /= static_cast<double>(ids.size(0) * counted);
    }
  }
  return added;
}

std::vector<std::vector<std::vector<double>>> head_shares(Transformer& teacher,
                                                          const std::vector<FeatureSet>& sets,
                                                          const Tensor& ids,
                                                          const Progress& progress,
                                                          const Group& group) {
  const int64_t layers = teacher.config().layers;
  std::vector<std::unique_ptr<Attention>> own;
  std::vector<std::vector<std::vector<Changes>>> changes(static_cast<size_t>(layers));
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto at = static_cast<size_t>(layer);
    for (const FeatureSet& set : sets) {
      const bool cache_alone = set.layers[at].empty();
      changes[at].emplace_back(cache_alone ? static_cast<size_t>(teacher.config().kv_heads)
                                           : set.layers[at].counts.size());
    }
    const auto see = [&, at](const Heads& heads, const Tensor& out, const Tensor& grad_out) {
      const Tensor softmax = here(out), grad = here(grad_out);
      for (size_t set = 0; set < sets.size(); ++set)
        add_changes(softmax,
                    here(make_attention(teacher.config(), sets[set].layers[at],
                                        exact_keys_of(sets[set].exact, at))
                             ->forward(heads, {})),
                    grad, changes[at][set]);
    };
    own.push_back(teacher.exchange_attention(
        layer, std::make_unique<ObservedAttention>(teacher.config(), see)));
  }
  Gradients none;  // of weights and features: only what passes through the attention is wanted
  const Share mine = group.share(ids.size(0));
  const Progress pace = at_own_pace(group, progress);
  for (int64_t b = mine.begin; b < mine.end; ++b) {
    next_token_gradient(teacher, ids.slice(b, b + 1), true, none);
    report(pace, {"shares of heads", b + 1 - mine.begin, ids.size(0), "windows"});
  }
  sum_changes(group, changes);

  std::vector<std::vector<std::vector<double>>> shares;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto at = static_cast<size_t>(layer);
    teacher.exchange_attention(layer, std::move(own[at]));
    auto& heads = shares.emplace_back(changes[at].front().size());
    for (const std::vector<Changes>& set : changes[at]) {
      const std::vector<double> of_set = shares_of(set);
      for (size_t head = 0; head < heads.size(); ++head) heads[head].push_back(of_set[head]);
    }
  }
  return shares;
}

}  // namespace dofla
