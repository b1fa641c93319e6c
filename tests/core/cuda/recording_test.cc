#include <optional>

#include "dofla/core/device_recording.h"
#include "dofla/ops/activation.h"
#include "tests/support/gpu.h"

namespace dofla {
namespace {

class CudaRecording : public test::OnGpu {
 protected:
  Tensor numbers(float value) const {
    Tensor out({1000});
    std::fill_n(out.data<float>(), out.count(), value);
    return out.to(gpu);
  }
  static float first(const Tensor& x) { return here(x).data<float>()[0]; }
};

TEST_F(CudaRecording, RunsOnlyWhenReplayed) {
  Tensor x = numbers(1), y = numbers(2);
  Recording recording(gpu, [&] { add(x, y); });
  EXPECT_EQ(first(x), 1);
  recording.replay();
  recording.replay();
  EXPECT_EQ(first(x), 5);
}

TEST_F(CudaRecording, KeepsTheMemoryOfItsTensors) {
  Tensor x = numbers(1), out = numbers(0);
  add(out, x.clone());  // has run once before
  out = numbers(0);
  const int64_t before = bytes_in_use(gpu);
  {
    Recording recording(gpu, [&] {
      Tensor twice = x.clone();
      add(twice, x);
      add(out, twice);
    });
    EXPECT_GT(bytes_in_use(gpu), before);
    for (int i = 1; i <= 3; ++i) {
      recording.replay();
      const Tensor others[] = {numbers(-1), numbers(-2), numbers(-3)};
      EXPECT_EQ(first(out), static_cast<float>(2 * i));
      for (const Tensor& other : others) EXPECT_LT(first(other), 0);
    }
  }
  EXPECT_EQ(bytes_in_use(gpu), before);
}

TEST_F(CudaRecording, ThatFailsLeavesTheDeviceUsable) {
  Tensor x = numbers(1);
  const int64_t before = bytes_in_use(gpu);
  const auto record = [&](const std::function<void()>& work) { Recording recording(gpu, work); };
  EXPECT_THROW(record([&] {
                 add(x, x.clone());
                 throw std::invalid_argument("no more");
               }),
               std::invalid_argument);
  EXPECT_THROW(record([&] { record([] {}); }), std::invalid_argument);
  EXPECT_EQ(bytes_in_use(gpu), before);
  add(x, numbers(2));
  EXPECT_EQ(first(x), 3);
}

}  // namespace
}  // namespace dofla
