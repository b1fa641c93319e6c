// Draws J vectors, all equally likely, from the queries and keys of every head while the model
// runs. The samples stay on the device that the model runs on; the memory held is theirs, layers ·
// heads · draws · J · D floats, however long the text.
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/checkpoint/hf_config.h"
#include "dofla/core/random.h"
#include "dofla/core/tensor.h"
#include "dofla/distributed/group.h"
#include "dofla/model/observer.h"

namespace dofla {

struct SampleOptions {
  int64_t samples = 0;  // J, per head and draw
  int64_t draws = 1;    // R, independent of each other
  uint64_t seed = 0;
  int64_t heads = 0;  // that have a sample of their own: key heads; 0: all query heads
};

// A uniform sample without replacement of a stream of unknown length (Li's algorithm L, 1994):
// instead of a coin for every element it draws how many elements to pass over.
class Reservoir {
 public:
  Reservoir(int64_t capacity, Random random);

  // The place in the stream of the next element to take. Elements before it are passed over.
  int64_t next() const { return next_; }
  // Takes element next(): returns the slot it goes to, and moves next() on.
  int64_t take();

 private:
  void skip();

  int64_t capacity_;
  int64_t next_ = 0;
  double log_w_ = 0;  // log of the largest of `capacity` uniform keys, in the algorithm's terms
  Random random_;
};

class QueryKeySampler {
 public:
  QueryKeySampler(const ModelConfig& config, const SampleOptions& options);

  // Offers every query and key of B sequences to the samples of one layer. Each head has a sample
  // of its own, of its queries and of the keys that it attends to; a key head pools those of its
  // query heads, every key as often as there are of them, so that half of the vectors are keys.
  // Vectors are offered in the order sequence, token, query head, query before key, so that neither
  // the split of the sequences into batches nor the number of threads nor the device changes which
  // are drawn.
  void offer(int64_t layer,
             const Tensor& q,   // [B, H, T, D]
             const Tensor& k);  // [B, Hkv, T, D]

  // Calls offer; must not outlive the sampler.
  Observer observer();

  // Where ranks share the sequences: instead of offering one that another rank has, which has so
  // many tokens. After the last one sum() has all ranks hold what offering all would have given.
  void pass_over(int64_t tokens, const Device& device);
  void sum(const Group& group);

  // The sample of one head, [J, D]; a view of the sampler's memory. Throws Error if fewer than J
  // vectors were offered.
  Tensor sample(int64_t layer, int64_t head, int64_t draw) const;
  // Those of all heads, [layers · heads · draws, J, D].
  Tensor samples() const;

 private:
  // Calls put(head, place, row) for all of the next `vectors` of a head that stay in a sample:
  // where they stand among them, and in which row of all samples.
  template <class Put>
  void draw(int64_t layer, int64_t vectors, const Put& put);
  Tensor sample_rows(const Device& device);  // all samples, [rows, D]
  void require_enough(int64_t layer) const;

  ModelConfig config_;
  SampleOptions options_;
  int64_t heads_;                      // that have a sample of their own
  std::vector<int64_t> offered_;       // vectors per head, one count a layer
  std::vector<Reservoir> reservoirs_;  // [layers, heads, draws]
  Tensor samples_;                     // [layers · heads · draws, J, D], from the first offer on
};

}  // namespace dofla
