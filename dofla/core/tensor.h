// A dense row-major array with a type and a shape, on the CPU or on a GPU. Copying a Tensor copies
// the handle: both see the same memory. The memory is either its own or borrowed (a mapped
// checkpoint), and borrowed memory is read-only.
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

  bool defined() const { return data_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Device& device() const { return device_; }
  const Shape& shape() const { return shape_; }
  int64_t rank() const { return static_cast<int64_t>(shape_.size()); }
  int64_t size(int64_t axis) const;  // a negative axis counts from the end
  int64_t count() const { return count_; }
  int64_t bytes() const { return count_ * size_in_bytes(dtype_); }

  // The address, on whichever device it is.
  const void* raw() const { return data_; }
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

  Tensor reshape(Shape shape) const;               // same memory, same element count
  Tensor slice(int64_t begin, int64_t end) const;  // rows [begin, end) of the first axis
  Tensor to(DType dtype) const;                    // a converted copy; itself if it has that type
  Tensor to(const Device& device) const;           // a copy there; itself if it is there already
  Tensor clone() const;                            // a writable deep copy
  // Takes over the elements of a tensor of the same shape and type, on whichever device it is.
  void assign(const Tensor& from);
  Tensor repeat(int64_t copies) const;  // so many copies, one after another in axis 0

 private:
  void check_readable(DType asked) const {
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
  Device device_;
  std::shared_ptr<const void> owner_;
};

// Throws std::invalid_argument "what: expected …, found …" unless the tensor has this shape.
void require_shape(const Tensor& tensor, const Shape& expected, std::string_view what);

}  // namespace dofla
