#include "dofla/ops/cuda/matmul.h"

#include <algorithm>

#include "dofla/ops/cuda/cross_entropy_kernels.h"
#include "dofla/ops/cuda/gemm.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

// Rows whose logits exist at a time: enough to fill the GPU, never the whole batch's.
constexpr int64_t kPanelRows = 2048;

Matrix rows_of(const Tensor& x) {
  return {x.raw(), element_of(x), x.size(1)};
}

// The weight as the right-hand side [K, N] of a product.
Matrix weight_of(const Linear& linear) {
  return {linear.weight.raw(), element_of(linear.weight), linear.weight.size(1),
          !linear.input_major};
}

}  // namespace

void matmul(const Tensor& x, const Linear& linear, Tensor& y) {
  Gemm how;
  if (linear.bias.defined()) {
    require(linear.bias.dtype() == y.dtype(), "matmul: bias in {}, result in {}",
            name(linear.bias.dtype()), name(y.dtype()));
    how.epilogue = Epilogue::kBias;
    how.bias = linear.bias.raw();
  }
  gemm(x.device().context(), how, x.size(0), linear.outputs(), linear.inputs(), rows_of(x),
       weight_of(linear), y.mutable_raw(), element_of(y), y.size(1));
}

void cross_entropy(const Tensor& x, const Linear& head, const Tensor& targets, Tensor& loss) {
  const int64_t rows = x.size(0), vocabulary = head.outputs();
  const int64_t stride = (vocabulary + 63) / 64 * 64;
  const Device& device = x.device();
  const Tensor there = targets.to(device);
  Tensor logits({std::min(rows, kPanelRows), stride}, x.dtype(), device);
  for (int64_t begin = 0; begin < rows; begin += kPanelRows) {
    const int64_t end = std::min(rows, begin + kPanelRows);
    gemm(device.context(), {}, end - begin, vocabulary, head.inputs(), rows_of(x.slice(begin, end)),
         weight_of(head), logits.mutable_raw(), element_of(logits), stride);
    const LogitPanel panel = {element_of(logits), end - begin, vocabulary, stride};
    cuda_check(launch_cross_entropy_rows(panel, logits.raw(),
                                         static_cast<const int64_t*>(there.slice(begin, end).raw()),
                                         mutable_floats(loss) + begin, stream_of(x)),
               "cross entropy");
  }
}

}  // namespace dofla::cuda
