// A small, portable random stream. The same (seed, stream) gives the same numbers on every
// machine and with any number of threads: give each head, layer or worker a stream of its own.
#pragma once

#include <cstdint>

namespace dofla {

// Spreads a number over 64 bits, so that those of 1 and 2 share nothing (SplitMix64). Random bits
// by number: what was drawn before does not count.
inline uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed, uint64_t stream = 0);

  uint64_t bits();                 // 64 uniform bits
  double uniform();                // in [0, 1)
  double normal();                 // mean 0, variance 1
  uint64_t below(uint64_t bound);  // uniform in [0, bound), without bias; bound > 0

 private:
  uint64_t state_[4];
  double spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace dofla
