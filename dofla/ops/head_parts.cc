#include "dofla/ops/head_parts.h"

#include <functional>
#include <map>

#include "dofla/ops/heads.h"

namespace dofla {
namespace {

// Calls f(begin, end, place) for every run of heads that follow each other in the layer, which has
// so many: its heads [begin, end) stand at `place` in the part.
void for_runs(const HeadPart& part, int64_t heads,
              const std::function<void(int64_t, int64_t, int64_t)>& f) {
  require(part.of > 0 && heads % part.of == 0, "{} heads for {} key heads", heads, part.of);
  const int64_t each = heads / part.of;
  for (size_t i = 0; i < part.key_heads.size();) {
    size_t end = i + 1;
    while (end < part.key_heads.size() && part.key_heads[end] == part.key_heads[end - 1] + 1) ++end;
    f(part.key_heads[i] * each, (part.key_heads[end - 1] + 1) * each,
      static_cast<int64_t>(i) * each);
    i = end;
  }
}

Tensor head_range(const Tensor& x, int64_t begin, int64_t end) {
  return x.view({x.size(0), end - begin, x.size(2), x.size(3)}, begin * x.step(1),
                {x.step(0), x.step(1), x.step(2), 1});
}

int64_t heads_in_part(const HeadPart& part, int64_t heads) {
  return heads / part.of * static_cast<int64_t>(part.key_heads.size());
}

// Rows of features: those of head h are [offsets[h], offsets[h + 1]).
struct FeatureRows {
  std::vector<int64_t> offsets;
  int64_t heads() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t at(int64_t head) const { return offsets[static_cast<size_t>(head)]; }
};

// Copies the rows of the part's heads, from the layer or to it.
void copy_rows(const FeatureRows& rows, const HeadPart& part, const Tensor& from, bool to_layer,
               Tensor& to) {
  int64_t place = 0;
  for_runs(part, rows.heads(), [&](int64_t begin, int64_t end, int64_t) {
    const int64_t first = rows.at(begin), count = rows.at(end) - first;
    const Tensor source =
        to_layer ? from.slice(place, place + count) : from.slice(first, first + count);
    Tensor target = to_layer ? to.slice(first, first + count) : to.slice(place, place + count);
    target.assign(source);
    place += count;
  });
}

// Of everything that learns in the features of a layer, in the order of feature_parts().
std::array<FeatureRows, 4> rows_of(const Features& features) {
  std::vector<int64_t> heads;
  for (int64_t h = 0; h <= features.heads(); ++h) heads.push_back(h);
  const FeatureRows rows = {features.offsets()};
  return {rows,
          rows,
          {features.untied() ? features.query_offsets() : std::vector<int64_t>{0}},
          {heads}};
}

int64_t rows_in_part(const FeatureRows& rows, const HeadPart& part) {
  int64_t count = 0;
  for_runs(part, rows.heads(),
           [&](int64_t begin, int64_t end, int64_t) { count += rows.at(end) - rows.at(begin); });
  return count;
}

}  // namespace

std::vector<KeyPart> equal_key_parts(const ExactKeys& exact, int64_t key_heads) {
  if (!exact.head_keys.empty())
    require(static_cast<int64_t>(exact.head_keys.size()) == key_heads,
            "exact keys of {} key heads, the layer has {}", exact.head_keys.size(), key_heads);
  std::map<int64_t, HeadPart> by_count;
  for (int64_t h = 0; h < key_heads; ++h) {
    const int64_t count =
        exact.head_keys.empty() ? exact.keys : exact.head_keys[static_cast<size_t>(h)];
    HeadPart& part = by_count[count];
    part.of = key_heads;
    part.key_heads.push_back(h);
  }
  std::vector<KeyPart> parts;
  parts.reserve(by_count.size());
  for (const auto& [count, part] : by_count) parts.push_back({part, exact.with_keys(count)});
  return parts;
}

Tensor take_heads(const Tensor& x, const HeadPart& part) {
  if (part.whole()) return x;
  Tensor out({x.size(0), heads_in_part(part, x.size(1)), x.size(2), x.size(3)}, x.dtype(),
             x.device());
  for_runs(part, x.size(1), [&](int64_t begin, int64_t end, int64_t place) {
    Tensor to = head_range(out, place, place + end - begin);
    copy_heads(head_range(x, begin, end), to);
  });
  return out;
}

void put_heads(const Tensor& from, const HeadPart& part, Tensor& to) {
  for_runs(part, to.size(1), [&](int64_t begin, int64_t end, int64_t place) {
    Tensor there = head_range(to, begin, end);
    copy_heads(head_range(from, place, place + end - begin), there);
  });
}

Features take_heads(const Features& features, const HeadPart& part) {
  if (part.whole() || features.empty()) return features;
  Features out;
  out.subtract_norm = features.subtract_norm;
  for_runs(part, features.heads(), [&](int64_t begin, int64_t end, int64_t) {
    out.counts.insert(out.counts.end(), features.counts.begin() + begin,
                      features.counts.begin() + end);
  });
  const std::array<FeatureRows, 4> rows = rows_of(features);
  const auto from = feature_parts(features);
  const auto to = feature_parts(out);
  for (size_t i = 0; i < from.size(); ++i) {
    const Tensor& all = *from[i].second;
    if (!all.defined()) continue;
    Shape shape = all.shape();
    shape[0] = rows_in_part(rows[i], part);
    *to[i].second = Tensor(shape, all.dtype(), all.device());
    copy_rows(rows[i], part, all, false, *to[i].second);
  }
  return out.to(features.z.device());
}

void put_heads(const FeatureGradients& from, const Features& of_layer, const HeadPart& part,
               FeatureGradients& to) {
  const std::array<FeatureRows, 4> rows = rows_of(of_layer);
  const auto source = feature_parts(from);
  const auto target = feature_parts(to);
  for (size_t i = 0; i < source.size(); ++i)
    if (source[i].second->defined())
      copy_rows(rows[i], part, *source[i].second, true, *target[i].second);
}

}  // namespace dofla
