// Means and covariances of queries and keys, gathered while the model runs: what coordinates are
// chosen by.
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/checkpoint/hf_config.h"
#include "dofla/distributed/group.h"
#include "dofla/model/observer.h"

namespace dofla {

// Of the vectors of one head, in double precision.
struct Moments {
  std::vector<double> mean;        // [D]
  std::vector<double> second;      // [D, D]: the mean of x xᵀ
  std::vector<double> covariance;  // [D, D]
};

class QueryKeyMoments {
 public:
  explicit QueryKeyMoments(const ModelConfig& config);

  // Adds the queries and keys of a layer. Those of the query heads that share a key head count as
  // one head's.
  void offer(int64_t layer,
             const Tensor& q,    // [B, H, T, D]
             const Tensor& k);   // [B, Hkv, T, D]
  Observer observer();           // calls offer; must not outlive this
  void sum(const Group& group);  // all ranks: from here on what all of them were offered

  // Throw Error, naming the layer and head, if a query or key was not finite or none was offered.
  Moments queries(int64_t layer, int64_t key_head) const;
  Moments keys(int64_t layer, int64_t key_head) const;

 private:
  struct Sums {
    int64_t count = 0;
    std::vector<double> first, second;  // Σ x [D], Σ x xᵀ [D, D] with its upper triangle
  };
  Moments moments(const Sums& sums, int64_t layer, int64_t key_head) const;
  void add(const Tensor& x, std::vector<Sums>& to, int64_t layer);

  int64_t key_heads_, size_;
  std::vector<Sums> queries_, keys_;  // [layers, Hkv]
};

}  // namespace dofla
