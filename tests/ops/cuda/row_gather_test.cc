// Rows by index: the GPU against the CPU, to the bit.
#include "dofla/ops/row_gather.h"

#include "dofla/ops/heads.h"
#include "tests/support/gpu.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

class CudaRowGather : public test::OnGpu {
 protected:
  // `picked` of `rows` rows, each at most once, and some −1.
  Tensor some_index(int64_t batch, int64_t heads, int64_t picked, int64_t rows) {
    Tensor index({batch, heads, picked}, DType::kI32);
    for (int64_t i = 0; i < batch * heads; ++i) {
      const auto shift = static_cast<int64_t>(random.below(static_cast<uint64_t>(rows)));
      for (int64_t r = 0; r < picked; ++r)  // 7 and the number of rows have no common divisor
        index.data<int32_t>()[i * picked + r] =
            r % 5 == 3 ? -1 : static_cast<int32_t>((shift + 7 * r) % rows);
    }
    return index;
  }
  Tensor random_rows(const Shape& shape, DType dtype) {
    return test::normal_tensor(shape, random).to(dtype);
  }

  Random random{5};
};

TEST_F(CudaRowGather, SameBitsAsOnTheCpu) {
  constexpr int64_t kBatch = 2, kHeads = 6, kRows = 50, kPicked = 33;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t width : {7, 20, 64})
      for (const int64_t index_batch : {int64_t{1}, kBatch})
        for (const int64_t index_heads : {int64_t{1}, int64_t{2}, kHeads}) {
          const std::string what = fmt::format("{} wide in {}, index of {} × {}", width,
                                               name(dtype), index_batch, index_heads);
          const Tensor index = some_index(index_batch, index_heads, kPicked, kRows);
          // Heads between columns of others.
          const Tensor rows = random_rows({kBatch * kRows, kHeads * 2 * width + 8}, dtype);
          const auto heads_in = [&](const Tensor& all) {
            return view_heads(all, {8, 2 * width}, kBatch, kHeads, width);
          };
          const Tensor dense = contiguous_heads(heads_in(rows.to(DType::kF32)));
          Tensor there = rows.to(gpu);
          EXPECT_TRUE(test::same_bits(here(gather_rows(heads_in(there), index.to(gpu))),
                                      gather_rows(dense, index)))
              << what;

          const Tensor from = random_rows({kBatch, kHeads, kPicked, width}, dtype);
          Tensor sums = dense.clone();
          add_rows(from.to(DType::kF32), index, sums);
          Tensor sums_there = heads_in(there);
          add_rows(from.to(gpu), index.to(gpu), sums_there);
          EXPECT_TRUE(
              test::same_bits(here(contiguous_heads(sums_there)), sums.to(dtype).to(DType::kF32)))
              << what << ", added";
        }
}

}  // namespace
}  // namespace dofla
