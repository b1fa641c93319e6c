#include "dofla/sensitivity/measure_recall.h"

#include <algorithm>

#include "dofla/features/feature_set.h"
#include "dofla/sensitivity/added_loss.h"
#include "dofla/sensitivity/recall_windows.h"

namespace dofla {
namespace {

// With less than this share of the loss left, heads follow in the order of the last look at them.
constexpr double kLittle = 0.05;
// A look is at twice as many heads as are to be added, and at least at so many.
constexpr size_t kFewestLooks = 8;

class Search {
 public:
  Search(Transformer& teacher, const Tensor& windows, const ExactKeySet& keys,
         const Progress& progress, const Group& group)
      : teacher_(teacher),
        windows_(windows),
        progress_(progress),
        group_(group),
        keys_(exact_keys_alone(keys)) {
    order_.windows = windows.size(0);
    for (size_t layer = 0; layer < keys.size(); ++layer)
      for (int64_t head = 0; head < teacher.config().kv_heads; ++head)
        rest_.push_back({static_cast<int64_t>(layer), head, keys[layer].of_head(head).keys, 0});
  }

  RecallOrder run() {
    order_.lost = lost_ = look(rest_.size());
    for (size_t next = 1;; next = std::min(rest_.size(), order_.steps.size())) {
      if (lost_ <= kLittle * order_.lost) next = rest_.size();
      add(next);
      if (rest_.empty()) break;
      if (rest_.size() > order_.steps.size())
        settle(look(std::max(2 * order_.steps.size(), kFewestLooks)));
    }
    // With all keys the model is the teacher.
    settle(windows_.size(1) > kMostPlannedKeys ? look(0) : 0);
    return std::move(order_);
  }

 private:
  // So many that none ever leaves, of a long window as many as can be planned: numbers of a layer
  // differ by multiples of the block.
  void give_all_keys(const RecallOrder::Step& step, ExactKeys& exact) const {
    const int64_t most = std::min(windows_.size(1), kMostPlannedKeys);
    const int64_t lacking = std::max<int64_t>(0, most - step.keys);
    const int64_t all = step.keys + (lacking + exact.block - 1) / exact.block * exact.block;
    if (exact.head_keys.empty())
      exact.head_keys.assign(static_cast<size_t>(teacher_.config().kv_heads), exact.keys);
    exact.head_keys[static_cast<size_t>(step.head)] = all;
    exact.keys = std::max(exact.keys, all);
  }

  // Measures what the first heads of the rest would save now, each alone, and sorts them by it.
  // The loss without any of them.
  double look(size_t heads) {
    const auto looked_at = rest_.begin() + static_cast<int64_t>(std::min(heads, rest_.size()));
    // A set for every head of a layer, for the layers in which it is looked at, and one of no more
    // than the keys there are.
    FeatureSet none = exact_keys_alone(teacher_.config().layers, {});
    std::vector<FeatureSet> sets(static_cast<size_t>(teacher_.config().kv_heads), none);
    for (auto step = rest_.begin(); step != looked_at; ++step) {
      ExactKeys& exact =
          sets[static_cast<size_t>(step->head)].exact[static_cast<size_t>(step->layer)];
      exact = keys_.exact[static_cast<size_t>(step->layer)];
      give_all_keys(*step, exact);
    }
    none.exact.back() = keys_.exact.back();
    sets.push_back(std::move(none));
    const std::vector<std::vector<double>> lost = loss_added_by_layers(
        teacher_, sets, windows_,
        {.stage = "recall", .judged = repeated_at_end(windows_.size(1)), .others = &keys_},
        progress_, group_);
    for (auto step = rest_.begin(); step != looked_at; ++step)
      step->saved = lost.back().back() -
                    lost[static_cast<size_t>(step->head)][static_cast<size_t>(step->layer)];
    std::stable_sort(rest_.begin(), looked_at,
                     [](const auto& a, const auto& b) { return a.saved > b.saved; });
    return lost.back().back();
  }

  // The next heads have all keys from now on.
  void add(size_t heads) {
    const auto end = rest_.begin() + static_cast<int64_t>(heads);
    for (auto step = rest_.begin(); step != end; ++step)
      give_all_keys(*step, keys_.exact[static_cast<size_t>(step->layer)]);
    order_.steps.insert(order_.steps.end(), rest_.begin(), end);
    rest_.erase(rest_.begin(), end);
  }

  // The heads that were added since the last time saved so much together that this is lost now.
  // Each of them has a share by what it would have saved alone.
  void settle(double lost) {
    const auto begin = order_.steps.begin() + static_cast<int64_t>(settled_);
    double sum = 0;
    for (auto step = begin; step != order_.steps.end(); ++step) sum += std::max(step->saved, 0.0);
    const double equal = 1 / static_cast<double>(order_.steps.end() - begin);
    for (auto step = begin; step != order_.steps.end(); ++step)
      step->saved = (lost_ - lost) * (sum > 0 ? std::max(step->saved, 0.0) / sum : equal);
    lost_ = lost;
    settled_ = order_.steps.size();
  }

  Transformer& teacher_;
  const Tensor& windows_;
  const Progress& progress_;
  const Group& group_;
  FeatureSet keys_;                      // that every head has so far
  double lost_ = 0;                      // with these, when it was last measured
  std::vector<RecallOrder::Step> rest_;  // that have no more than the plan gives them
  RecallOrder order_;
  size_t settled_ = 0;  // steps whose share is known
};

}  // namespace

RecallOrder measure_recall(Transformer& teacher, const Tensor& windows, const ExactKeySet& keys,
                           const Progress& progress, const Group& group) {
  return Search(teacher, windows, keys, progress, group).run();
}

}  // namespace dofla
