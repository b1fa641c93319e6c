#include "dofla/core/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include <fmt/ranges.h>

#include "dofla/core/host_memory.h"

namespace dofla {
namespace {

constexpr size_t kAlignment = 64;
// From here on the heap, too, would take pages from the system and give them back.
constexpr size_t kLarge = size_t{1} << 17;

std::shared_ptr<void> allocate(int64_t bytes) {
  const size_t size = (static_cast<size_t>(bytes) + kAlignment) / kAlignment * kAlignment;
  std::shared_ptr<void> memory;
  if (size >= kLarge) {
    memory = HostMemory::of_process().allocate(size);
  } else {
    memory.reset(std::aligned_alloc(kAlignment, size), std::free);
    if (memory == nullptr) throw std::bad_alloc();
  }
#ifdef DOFLA_POISON
  std::memset(memory.get(), 0xff, size);  // all ones is NaN in every float type
#endif
  return memory;
}

// Calls use(T()) with the type of the elements.
template <class Use>
void with_float_type(DType dtype, const Use& use) {
  switch (dtype) {
    case DType::kF64:
      return use(double());
    case DType::kF16:
      return use(Float16());
    case DType::kF32:
      return use(float());
    case DType::kBF16:
      return use(BFloat16());
    default:
      throw std::invalid_argument(fmt::format("cannot convert from or to {}", name(dtype)));
  }
}

template <class From, class To>
To converted(From from) {
  if constexpr (std::is_same_v<From, Float16> || std::is_same_v<From, BFloat16>)
    return converted<float, To>(to_float(from));
  else if constexpr (std::is_same_v<To, BFloat16>)
    return to_bfloat16(static_cast<float>(from));
  else if constexpr (std::is_same_v<To, Float16>)
    throw std::invalid_argument("cannot convert to F16");
  else
    return static_cast<To>(from);
}

void copy_within(const Device& device, const void* from, void* to, int64_t bytes) {
  if (device.is_cuda())
    copy_bytes(device, from, device, to, bytes);
  else
    std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

Tensor::Tensor(Shape shape, DType dtype, Device device)
    : dtype_(dtype), shape_(std::move(shape)), device_(std::move(device)) {
  count_ = element_count(shape_);
  int64_t total = 0;
  require(!__builtin_mul_overflow(count_, size_in_bytes(dtype), &total),
          "shape {} has too many bytes", shape_);
  std::shared_ptr<void> memory = device_.is_cuda() ? allocate_on(device_, total) : allocate(total);
  data_ = memory.get();
  owner_ = std::move(memory);
  writable_ = true;
}

Tensor Tensor::zeros(Shape shape, DType dtype, Device device) {
  Tensor out(std::move(shape), dtype, std::move(device));
  if (out.device_.is_cuda())
    zero_bytes(out.device_, out.mutable_raw(), out.bytes());
  else
    std::memset(out.mutable_raw(), 0, static_cast<size_t>(out.bytes()));
  return out;
}

Tensor Tensor::borrow(const void* data, Shape shape, DType dtype,
                      std::shared_ptr<const void> owner) {
  Tensor out;
  out.dtype_ = dtype;
  out.count_ = element_count(shape);
  out.shape_ = std::move(shape);
  out.data_ = data;
  out.owner_ = std::move(owner);
  return out;
}

Tensor Tensor::scaled(const Tensor& whole, const Tensor& factors) {
  require(whole.rank() == 2 && whole.dtype() == DType::kI8 && factors.dtype() == DType::kF32,
          "scaled: expected a matrix of I8 and F32, found {} {} and {}", name(whole.dtype()),
          whole.shape(), name(factors.dtype()));
  require(factors.shape() == Shape{whole.size(0), 1} || factors.shape() == Shape{1, whole.size(1)},
          "scaled: factors {} for a matrix {}", factors.shape(), whole.shape());
  Tensor out = whole;
  out.factors_ = std::make_shared<const Tensor>(factors);
  return out;
}

int64_t Tensor::size(int64_t axis) const {
  const int64_t at = axis < 0 ? axis + rank() : axis;
  if (at < 0 || at >= rank())  // not require(): the message would be made at every call
    throw std::invalid_argument(fmt::format("axis {} of a tensor of shape {}", axis, shape_));
  return shape_[static_cast<size_t>(at)];
}

void* Tensor::mutable_raw() {
  check_dense();
  return mutable_first();
}

void* Tensor::mutable_first() {
  if (!writable_)  // not require(): the message would be made at every access
    throw std::invalid_argument("writing to a read-only tensor of shape " + to_string(shape_));
  return const_cast<void*>(data_);
}

Tensor Tensor::view(Shape shape, int64_t offset, Shape steps) const {
  check_not_scaled();
  int64_t reach = count_;  // elements from the first to the last, with the gaps of a view
  if (is_view() && count_ > 0) {
    reach = 1;
    for (size_t axis = 0; axis < shape_.size(); ++axis) reach += (shape_[axis] - 1) * steps_[axis];
  }
  require(!shape.empty() && shape.size() == steps.size(), "a view of shape {} with steps {}", shape,
          steps);
  Tensor out = *this;
  out.count_ = element_count(shape);
  int64_t last = offset;
  bool forward = offset >= 0;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    last += (shape[axis] - 1) * steps[axis];
    forward = forward && steps[axis] >= 0;
  }
  require(out.count_ == 0 || (forward && last < reach),
          "a view of shape {} from element {} on with steps {} leaves a tensor of shape {}", shape,
          offset, steps, shape_);
  out.data_ = static_cast<const std::byte*>(data_) + offset * size_in_bytes(dtype_);
  out.shape_ = std::move(shape);
  out.steps_ = std::move(steps);
  return out;
}

int64_t Tensor::step(int64_t axis) const {
  const int64_t at = axis < 0 ? axis + rank() : axis;
  size(at);  // checks it
  if (is_view()) return steps_[static_cast<size_t>(at)];
  int64_t step = 1;
  for (int64_t i = at + 1; i < rank(); ++i) step *= shape_[static_cast<size_t>(i)];
  return step;
}

Tensor Tensor::reshape(Shape shape) const {
  check_dense();
  check_not_scaled();
  require(element_count(shape) == count_, "cannot reshape {} to {}", shape_, shape);
  Tensor out = *this;
  out.shape_ = std::move(shape);
  return out;
}

Tensor Tensor::slice(int64_t begin, int64_t end) const {
  check_not_scaled();
  require(rank() > 0 && 0 <= begin && begin <= end && end <= shape_[0],
          "rows [{}, {}) of a tensor of shape {}", begin, end, shape_);
  Tensor out = *this;
  out.shape_[0] = end - begin;
  out.count_ = shape_[0] == 0 ? 0 : count_ / shape_[0] * (end - begin);
  out.data_ = static_cast<const std::byte*>(data_) + begin * step(0) * size_in_bytes(dtype_);
  return out;
}

Tensor Tensor::to(DType dtype) const {
  if (dtype == dtype_) return *this;
  require(!device_.is_cuda(), "tensors change their type on the CPU only");
  if (is_scaled()) return multiplied_out().to(dtype);
  Tensor out(shape_, dtype);
  with_float_type(dtype_, [&]<class From>(From) {
    with_float_type(dtype, [&]<class To>(To) {
      std::transform(data<From>(), data<From>() + count_, out.data<To>(), converted<From, To>);
    });
  });
  return out;
}

Tensor Tensor::multiplied_out() const {
  Tensor out(shape_);
  float* to = out.data<float>();
  const auto* whole = data<int8_t>();
  const auto* factor = factors_->data<float>();
  const int64_t columns = size(1);
  for (int64_t i = 0; i < count_; ++i)
    to[i] = static_cast<float>(whole[i]) * factor[has_row_factors() ? i / columns : i % columns];
  return out;
}

Tensor Tensor::to(const Device& device) const {
  if (device == device_ || !defined()) return *this;
  check_not_scaled();
  Tensor out(shape_, dtype_, device);
  copy_bytes(device_, raw(), device, out.mutable_raw(), bytes());
  return out;
}

Tensor Tensor::clone() const {
  Tensor out(shape_, dtype_, device_);
  copy_within(device_, raw(), out.mutable_raw(), bytes());
  out.factors_ = factors_;
  return out;
}

void Tensor::assign(const Tensor& from) {
  require(from.shape_ == shape_ && from.dtype_ == dtype_, "cannot assign {} {} to {} {}",
          name(from.dtype_), from.shape_, name(dtype_), shape_);
  check_not_scaled();
  from.check_not_scaled();
  if (device_.is_cuda() || from.device_.is_cuda())
    copy_bytes(from.device_, from.raw(), device_, mutable_raw(), bytes());
  else
    std::memcpy(mutable_raw(), from.raw(), static_cast<size_t>(bytes()));
}

Tensor Tensor::repeat(int64_t copies) const {
  require(rank() > 0 && copies > 0, "cannot repeat {} {} times", shape_, copies);
  check_not_scaled();
  Shape shape = shape_;
  shape[0] *= copies;
  Tensor out(shape, dtype_, device_);
  for (int64_t i = 0; i < copies; ++i)
    copy_within(device_, raw(), static_cast<std::byte*>(out.mutable_raw()) + i * bytes(), bytes());
  return out;
}

void require_shape(const Tensor& tensor, const Shape& expected, std::string_view what) {
  if (tensor.shape() != expected)
    throw std::invalid_argument(fmt::format("{}: expected {}, found {}", what, to_string(expected),
                                            to_string(tensor.shape())));
}

}  // namespace dofla
