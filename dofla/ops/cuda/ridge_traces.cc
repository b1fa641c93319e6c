// tr(Σ+λI)⁻¹ = ‖L⁻¹‖² (Frobenius) with L the Cholesky factor. Nearly all of the work is products of
// blocks of all heads at once, which cuBLASLt does on the tensor cores. cuSOLVER has nothing of the
// kind: its batched factorisation is for matrices of a few dozen rows, the other takes one matrix
// at a time, and neither inverts triangles.
#include "dofla/ops/ridge_traces.h"

#include <algorithm>
#include <numeric>

#include "dofla/ops/cuda/batched_gemm.h"
#include "dofla/ops/cuda/ridge_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

constexpr int64_t kBlock = kRidgeBlock;
// Columns that are updated by all columns before them in one product: wide enough that the tensor
// cores wait for nothing, narrow enough that little is computed above the diagonal.
constexpr int64_t kPanel = 256;
constexpr int64_t kMostTogether = 1024;  // heads: more do not run faster

double* doubles(Tensor& x) {
  return static_cast<double*>(x.mutable_raw());
}

int64_t whole_blocks(int64_t samples) {
  return (samples + kBlock - 1) / kBlock * kBlock;
}

// Elements of a workspace for a panel and for the products of every step of `invert`.
int64_t scratch_elements(int64_t size) {
  int64_t most = size * kPanel;
  for (int64_t half = kBlock; half < size; half *= 2)
    most = std::max(most, half * std::min(half, size - half));
  return most;
}

// Memory for some heads, used by one group of heads after the other.
struct Workspace {
  Workspace(int64_t most, int64_t samples, int64_t width, const Device& gpu)
      : size(whole_blocks(samples)),
        scratch_each(scratch_elements(size)),
        rows({most, size, width}, DType::kF64, gpu),
        shifts({most, 2}, DType::kF64, gpu),
        matrix(Tensor::zeros({most, size, size}, DType::kF64, gpu)),
        scratch({most, scratch_each}, DType::kF64, gpu) {}

  static int64_t bytes_a_head(int64_t samples, int64_t width) {
    const int64_t size = whole_blocks(samples);
    return 8 * (size * (size + width) + scratch_elements(size));
  }

  int64_t size, scratch_each;
  Tensor rows, shifts;
  // L below its diagonal blocks, then L⁻¹; on the diagonal L⁻¹ from the start. Zero above: products
  // with triangles read some of it.
  Tensor matrix;
  Tensor scratch;  // a panel of Σ+λI, or an intermediate product
};

// A group of heads that are worked on together.
struct Group {
  Group(CudaContext& gpu, Workspace& space, int64_t count, int64_t samples, int64_t width)
      : context(gpu),
        shape{count, samples, space.size, width},
        rows{doubles(space.rows), width, space.size * width},
        matrix{doubles(space.matrix), space.size, space.size * space.size},
        panel{doubles(space.scratch), kPanel, space.scratch_each},
        shifts(reinterpret_cast<GramShift*>(doubles(space.shifts))) {}

  void multiply(int64_t height, int64_t columns, int64_t inner, double alpha, const MatrixBatch& a,
                const MatrixBatch& b, double beta, const MatrixBatch& c) const {
    batched_gemm(context, shape.count, height, columns, inner, alpha, a, b, beta, c);
  }

  CudaContext& context;
  RidgeShape shape;
  MatrixBatch rows, matrix, panel;
  GramShift* shifts;
};

// Σ+λI less the part of it that the factor's columns before `first` account for: its rows from
// `first` on, its columns [first, first + columns).
void form_panel(const Group& g, double lambda, int64_t first, int64_t columns) {
  const int64_t height = g.shape.size - first;
  const MatrixBatch x = g.rows.at(first, 0);
  g.multiply(height, columns, g.shape.width, 1, x, x.transpose(), 0, g.panel);
  cuda_check(
      launch_ridge_panel(g.shape, g.shifts, lambda, first, columns, g.panel, g.context.stream()),
      "Gram matrix");
  const MatrixBatch before = g.matrix.at(first, 0);
  if (first > 0) g.multiply(height, columns, first, -1, before, before.transpose(), 1, g.panel);
}

// L Lᵀ = Σ+λI from left to right: the diagonal blocks of L⁻¹, and of L what lies below them.
void factor(const Group& g, double lambda) {
  const int64_t n = g.shape.size;
  for (int64_t first = 0; first < n; first += kPanel) {
    const int64_t columns = std::min(kPanel, n - first);
    form_panel(g, lambda, first, columns);
    for (int64_t done = 0; done < columns; done += kBlock) {
      const int64_t here = first + done, below = here + kBlock;
      const MatrixBatch column = g.panel.at(done, done), before = g.matrix.at(here, first);
      if (done > 0) g.multiply(n - here, kBlock, done, -1, before, before.transpose(), 1, column);
      const MatrixBatch inverse = g.matrix.at(here, here);
      cuda_check(launch_inverse_factors(g.shape.count, column, inverse, g.context.stream()),
                 "Cholesky factor");
      if (below < n)
        g.multiply(n - below, kBlock, kBlock, 1, column.at(kBlock, 0), inverse.transpose(), 0,
                   g.matrix.at(below, here));
    }
  }
}

// L⁻¹ in the place of L. The inverse of a triangle of two triangles A and C with B below A has
// −C⁻¹ B A⁻¹ below A⁻¹: from single blocks, whose inverses are there, to the whole, twice as large
// every time. Of the triangles A⁻¹ and C⁻¹ the products skip most of what is zero.
void invert(const Group& g) {
  const int64_t n = g.shape.size;
  for (int64_t half = kBlock; half < n; half *= 2)
    for (int64_t a = 0; a + half < n; a += 2 * half) {
      const int64_t c = a + half, height = std::min(half, n - c);
      const MatrixBatch product = {g.panel.data, half, g.panel.distance};
      for (int64_t j = 0; j < half; j += kPanel)
        g.multiply(height, std::min(kPanel, half - j), half - j, 1, g.matrix.at(c, a + j),
                   g.matrix.at(a + j, a + j), 0, product.at(0, j));
      for (int64_t i = 0; i < height; i += kPanel) {
        const int64_t some = std::min(kPanel, height - i);
        g.multiply(some, half, i + some, -1, g.matrix.at(c + i, c), product, 0,
                   g.matrix.at(c + i, a));
      }
    }
}

// As many as fit the memory that is free; the rest of it is for what the driver rounds up.
int64_t heads_together(CudaContext& context, const Tensor& samples) {
  const int64_t each = Workspace::bytes_a_head(samples.size(1), samples.size(2));
  const auto fit = static_cast<int64_t>(0.9 * static_cast<double>(context.available_bytes()) /
                                        static_cast<double>(each));
  return std::clamp<int64_t>(fit, 1, std::min(samples.size(0), kMostTogether));
}

RidgeTraces ridge_traces(const Tensor& samples, GramScale scale, std::span<const double> lambdas) {
  CudaContext& context = samples.device().context();
  const int64_t N = samples.size(0), J = samples.size(1), D = samples.size(2);
  const auto L = static_cast<int64_t>(lambdas.size());
  const int64_t most = heads_together(context, samples);
  Workspace space(most, J, D, samples.device());
  const int64_t blocks = space.size / kBlock;
  RidgeTraces traces;
  traces.inverse.resize(static_cast<size_t>(N * L));
  for (int64_t first = 0; first < N; first += most) {
    const Group group(context, space, std::min(most, N - first), J, D);
    const int64_t count = group.shape.count;
    const Tensor of_group = samples.slice(first, first + count);
    cuda_check(launch_kernel_rows(group.shape, floats(of_group), group.rows.data, context.stream()),
               "Gram matrix");
    cuda_check(
        launch_gram_shifts(group.shape, scale, group.rows.data, group.shifts, context.stream()),
        "Gram matrix");
    Tensor sums({L, count, blocks}, DType::kF64, samples.device());
    for (int64_t l = 0; l < L; ++l) {
      factor(group, lambdas[static_cast<size_t>(l)]);
      invert(group);
      cuda_check(launch_square_sums(group.shape, group.matrix, doubles(sums) + l * count * blocks,
                                    context.stream()),
                 "trace");
    }
    const Tensor of_blocks = sums.to(Device()), shifts = space.shifts.to(Device());
    for (int64_t h = 0; h < count; ++h) {
      traces.gram.push_back(shifts.data<double>()[2 * h + 1]);
      for (int64_t l = 0; l < L; ++l) {
        const double* sum = of_blocks.data<double>() + (l * count + h) * blocks;
        traces.inverse[static_cast<size_t>((first + h) * L + l)] =
            std::accumulate(sum, sum + blocks, 0.0);
      }
    }
  }
  return traces;
}

}  // namespace

const RidgeTracesBackend kRidgeTraces = {.ridge_traces = ridge_traces};

}  // namespace dofla::cuda
