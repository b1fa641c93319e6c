#include "dofla/core/random.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "dofla/core/error.h"

namespace dofla {
namespace {

// The next of a row of numbers, for a seed to be spread over the whole state.
uint64_t mix(uint64_t& x) {
  const uint64_t number = mixed(x);
  x += 0x9e3779b97f4a7c15u;
  return number;
}

}  // namespace

Random::Random(uint64_t seed, uint64_t stream) {
  uint64_t from_stream = stream;
  uint64_t x = seed ^ mix(from_stream);
  for (uint64_t& word : state_) word = mix(x);
}

uint64_t Random::bits() {  // xoshiro256++ (Blackman and Vigna)
  const uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
  const uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

double Random::uniform() {
  return static_cast<double>(bits() >> 11) * 0x1p-53;
}

double Random::normal() {  // Box-Muller: exact, and the same on every machine
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  const double angle = 2.0 * std::numbers::pi * uniform();
  spare_ = radius * std::sin(angle);
  has_spare_ = true;
  return radius * std::cos(angle);
}

uint64_t Random::below(uint64_t bound) {
  require(bound > 0, "Random::below(0)");
  const uint64_t limit = -bound % bound;  // 2⁶⁴ mod bound: reject the uneven rest
  while (true) {
    const uint64_t x = bits();
    if (x >= limit) return x % bound;
  }
}

}  // namespace dofla
