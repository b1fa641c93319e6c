#include "dofla/ops/row_gather.h"

#include "dofla/ops/cuda/head_tensors.h"
#include "dofla/ops/cuda/row_gather_kernels.h"

namespace dofla::cuda {
namespace {

// `rows` are those in the order of the index.
RowGatherShape shape_of(const Tensor& rows, const Tensor& index) {
  return {element_of(rows), rows.size(0),  rows.size(1), rows.size(2),
          rows.size(3),     index.size(0), index.size(1)};
}

void gather(const Tensor& x, const Tensor& index, Tensor& out) {
  cuda_check(launch_gather_rows(shape_of(out, index), heads_of(x), short_integers(index),
                                heads_of(out), stream_of(x)),
             "gathering rows");
}

void add(const Tensor& from, const Tensor& index, Tensor& to) {
  cuda_check(launch_add_rows(shape_of(from, index), heads_of(from), short_integers(index),
                             heads_of(to), stream_of(to)),
             "adding rows");
}

}  // namespace

const RowGatherBackend kRowGather = {gather, add};

}  // namespace dofla::cuda
