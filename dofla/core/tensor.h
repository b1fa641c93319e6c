// A dense row-major array with a type and a shape, on the CPU or on a GPU. Copying a Tensor copies
// the handle: both see the same memory. The memory is either its own or borrowed (a mapped
// checkpoint), and borrowed memory is read-only. A view sees part of another tensor's memory, with
// gaps: only operations that say so take one. A scaled tensor is a matrix of 8-bit whole numbers
// with a factor for every row or every column, which counts as a matrix of floats where it is
// converted.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "dofla/core/device.h"
#include "dofla/core/dtype.h"
#include "dofla/core/error.h"
#include "dofla/core/shape.h"

namespace dofla {

class Tensor {
 public:
  Tensor() = default;  // no memory, no elements: defined() is false

  // 64-byte aligned memory with unspecified contents. Builds with DOFLA_POISON fill it with NaN,
  // so that a read before a write shows.
  explicit Tensor(Shape shape, DType dtype = DType::kF32, Device device = {});
  static Tensor zeros(Shape shape, DType dtype = DType::kF32, Device device = {});

  // Read-only view of memory that `owner` keeps alive.
  static Tensor borrow(const void* data, Shape shape, DType dtype,
                       std::shared_ptr<const void> owner);

  // The matrix whole · factors: `factors` [R, 1] has one a row, [1, C] one a column.
  static Tensor scaled(const Tensor& whole,     // [R, C], I8
                       const Tensor& factors);  // F32
  bool is_scaled() const { return factors_ != nullptr; }
  const Tensor& factors() const { return *factors_; }  // of a scaled tensor
  bool has_row_factors() const { return factors_->size(1) == 1; }

  bool defined() const { return data_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Device& device() const { return device_; }
  const Shape& shape() const { return shape_; }
  int64_t rank() const { return static_cast<int64_t>(shape_.size()); }
  int64_t size(int64_t axis) const;  // a negative axis counts from the end
  int64_t count() const { return count_; }
  int64_t bytes() const { return count_ * size_in_bytes(dtype_); }

  // The address, on whichever device it is; std::invalid_argument for a view.
  const void* raw() const {
    check_dense();
    return data_;
  }
  void* mutable_raw();

  // The elements of a tensor on the CPU; std::invalid_argument on a GPU.
  template <class T>
  const T* data() const {
    check_readable(DTypeOf<T>::value);
    return static_cast<const T*>(data_);
  }
  template <class T>
  T* data() {
    check_readable(DTypeOf<T>::value);
    return static_cast<T*>(mutable_raw());
  }

  // Element (i, j, …) of a view is element offset + i·steps[0] + j·steps[1] + … of this tensor. The
  // functions above refuse a view; an operation that accepts one addresses it through its steps.
  Tensor view(Shape shape, int64_t offset, Shape steps) const;
  bool is_view() const { return !steps_.empty(); }
  int64_t step(int64_t axis) const;            // in elements, of any tensor
  const void* first() const { return data_; }  // the address of the first element
  void* mutable_first();

  Tensor reshape(Shape shape) const;               // same memory, same element count
  Tensor slice(int64_t begin, int64_t end) const;  // rows [begin, end) of the first axis
  Tensor to(DType dtype) const;                    // a converted copy; itself if it has that type
  Tensor to(const Device& device) const;           // a copy there; itself if it is there already
  Tensor clone() const;                            // a writable deep copy
  // Takes over the elements of a tensor of the same shape and type, on whichever device it is.
  void assign(const Tensor& from);
  Tensor repeat(int64_t copies) const;  // so many copies, one after another in axis 0

 private:
  void check_dense() const {
    if (is_view())
      throw std::invalid_argument("a view of shape " + to_string(shape_) +
                                  " where a dense tensor is needed: copy it first");
  }
  // What would lose the factors is refused.
  void check_not_scaled() const {
    if (is_scaled())
      throw std::invalid_argument("a scaled tensor of shape " + to_string(shape_) +
                                  " where a plain one is needed: convert it first");
  }
  Tensor multiplied_out() const;  // a scaled tensor in F32
  void check_readable(DType asked) const {
    check_dense();
    if (asked != dtype_)
      throw std::invalid_argument(
          fmt::format("tensor holds {}, asked for {}", name(dtype_), name(asked)));
    if (device_.is_cuda())
      throw std::invalid_argument("tensor is on a GPU: copy it to the CPU to see its elements");
  }

  const void* data_ = nullptr;
  bool writable_ = false;
  DType dtype_ = DType::kF32;
  int64_t count_ = 0;
  Shape shape_;
  Shape steps_;  // of a view, else empty
  Device device_;
  std::shared_ptr<const void> owner_;
  std::shared_ptr<const Tensor> factors_;  // of a scaled tensor, else null
};

// Throws std::invalid_argument "what: expected …, found …" unless the tensor has this shape.
void require_shape(const Tensor& tensor, const Shape& expected, std::string_view what);

}  // namespace dofla
