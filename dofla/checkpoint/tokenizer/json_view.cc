#include "dofla/checkpoint/tokenizer/json_view.h"

#include <limits>

namespace dofla {

void JsonView::refuse_type(std::string_view expected) const {
  refuse("expected {}, found {}", expected, value_->type_name());
}

bool JsonView::has(std::string_view name) const {
  if (!value_->is_object()) refuse_type("an object");
  const auto found = value_->find(name);
  return found != value_->end() && !found->is_null();
}

JsonView JsonView::operator[](std::string_view name) const {
  if (!value_->is_object()) refuse_type("an object");
  const auto found = value_->find(name);
  if (found == value_->end()) refuse("'{}' is missing", name);
  return JsonView(*found, fmt::format("{}: {}", where_, name));
}

std::vector<JsonView> JsonView::elements() const {
  if (!value_->is_array()) refuse_type("an array");
  std::vector<JsonView> out;
  out.reserve(value_->size());
  for (const Json& element : *value_)
    out.emplace_back(element, fmt::format("{}: {}", where_, out.size()));
  return out;
}

std::string JsonView::text() const {
  if (!value_->is_string()) refuse_type("a string");
  return value_->get<std::string>();
}

bool JsonView::flag() const {
  if (!value_->is_boolean()) refuse_type("true or false");
  return value_->get<bool>();
}

int64_t JsonView::integer() const {
  if (!value_->is_number_integer()) refuse_type("an integer");
  constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (value_->is_number_unsigned() && value_->get<uint64_t>() > kLargest)
    refuse("{} is too large", value_->get<uint64_t>());
  return value_->get<int64_t>();
}

}  // namespace dofla
