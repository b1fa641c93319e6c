#include "dofla/ops/cuda/token_program.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "dofla/ops/cuda/head_tensors.h"
#include "dofla/ops/cuda/linear_attention_tensors.h"

namespace dofla::cuda {

StageProgram::StageProgram(const Device& gpu)
    : gpu_(gpu), blocks_(stage_list_blocks()), fits_(blocks_ > 0) {}

Tensor StageProgram::kept(const Tensor& x) {
  memory_.push_back(x);
  return x;
}

Tensor StageProgram::new_row(int64_t count) {
  // Blocks look at four numbers at a time.
  fits_ = fits_ && count % 4 == 0;
  return kept(Tensor::zeros({kRowCopies, count}, DType::kF32, gpu_)).slice(0, 1);
}

Tensor StageProgram::embed(const Tensor& tokens, const Tensor& positions) {
  fits_ = fits_ && is_bf16(tokens) && is_bf16(positions);
  Tensor y = new_row(tokens.size(1));
  Stage stage = {};
  stage.kind = Stage::Kind::kEmbed;
  stage.embed = {static_cast<int32_t>(tokens.size(1)), tokens.raw(), positions.raw(),
                 mutable_floats(y)};
  stages_.push_back(stage);
  return y;
}

Tensor StageProgram::dense(const Tensor& x, const Dense& layer, std::optional<DType> result) {
  const Linear& linear = layer.linear;
  fits_ = fits_ && is_bf16(linear.weight) && is_bf16(linear.bias) && !linear.input_major &&
          begins_at_pack(linear.weight) && begins_at_pack(layer.norm.weight) &&
          begins_at_pack(layer.norm.bias) && result.value_or(DType::kF32) == DType::kF32;
  const int64_t outputs = linear.outputs();
  Tensor y = result ? kept(Tensor({1, outputs}, DType::kF32, gpu_)) : new_row(outputs);
  Stage stage = {};
  stage.kind = Stage::Kind::kProduct;
  ProductStage& p = stage.product;
  p.inputs = static_cast<int32_t>(x.size(1)), p.outputs = static_cast<int32_t>(outputs);
  p.x = floats(x);
  p.norm = {floats(layer.norm.weight), floats(layer.norm.bias),
            static_cast<float>(layer.norm.epsilon), layer.norm.centre};
  p.weight = linear.weight.raw(), p.bias = linear.bias.raw();
  p.factor = floats(layer.factor), p.residual = floats(layer.residual);
  (result ? p.logits : p.y) = mutable_floats(y);
  p.nonlinear = layer.activation.has_value();
  p.f = layer.activation.value_or(Activation::kRelu);
  fits_ = fits_ && share_out(p, blocks_);
  stages_.push_back(stage);
  return y;
}

// Heads in a row between stages, of which every copy lies a whole row after the one before. The
// blocks that attend have their hands free before the others: they take no part in what gives them
// queries, keys and values.
HeadRows StageProgram::row_heads(const Tensor& view, int64_t attending) {
  const HeadRows heads = heads_of(view);
  fits_ = fits_ && heads.head_step % 4 == 0 && reinterpret_cast<uintptr_t>(heads.data) % 16 == 0;
  const auto* first = static_cast<const float*>(heads.data);
  for (Stage& stage : stages_)
    if (ProductStage& p = stage.product; stage.kind == Stage::Kind::kProduct && p.y != nullptr &&
                                         first >= p.y && first < p.y + p.outputs &&
                                         4 * attending <= blocks_)
      fits_ = fits_ && share_out(p, blocks_ - static_cast<int>(attending));
  return heads;
}

void StageProgram::place_heads(const Placement& placement) {
  placement_ = placement;
  // Lanes turn four coordinates with four others.
  fits_ = fits_ && placement.frequencies.count() % 4 == 0;
}

// Attention without features or keys; so many blocks take part.
AttentionStage StageProgram::attention_of(const Tensor& q, const Tensor& k, const Tensor& v,
                                          int64_t attending, const Tensor& y) {
  const int64_t width = q.size(3), heads = q.size(1);
  fits_ = fits_ && width % 4 == 0 && width <= kWidestHead;
  AttentionStage s = {};
  s.heads = static_cast<int32_t>(heads), s.group = static_cast<int32_t>(heads / k.size(1));
  s.width = static_cast<int32_t>(width);
  s.sharing = 1;
  s.q = row_heads(q, attending), s.k = row_heads(k, attending), s.v = row_heads(v, attending);
  s.q_norm = floats(placement_.q_norm), s.k_norm = floats(placement_.k_norm);
  s.epsilon = static_cast<float>(placement_.epsilon);
  s.pairs = static_cast<int32_t>(placement_.frequencies.count());
  s.frequencies = floats(placement_.frequencies);
  placement_ = {};
  Tensor row = y;
  s.y = mutable_floats(row);
  list_.widest_head = std::max(list_.widest_head, s.width);
  return s;
}

void StageProgram::add_features(const Features& features, LinearAttentionState& state,
                                AttentionStage& s) {
  fits_ = fits_ && begins_at_pack(features.z) && begins_at_pack(features.u) &&
          begins_at_pack(state.b) && (!any_features_ || list_.untied == features.untied());
  any_features_ = true;
  list_.untied = features.untied();
  s.sharing = static_cast<int32_t>(features.group());
  const FeatureScales scales = feature_scales(s.width, features.subtract_norm);
  s.inner_scale = scales.inner, s.norm_scale = scales.norm;
  s.offsets = static_cast<const int64_t*>(features.gpu_offsets.raw());
  s.z = floats(features.z), s.log_alpha = floats(features.log_alpha);
  s.u = floats(features.u), s.norm_weight = floats(features.norm_weight);
  s.sums = sums_of(state);
}

Tensor StageProgram::linear_attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const Features& features, LinearAttentionState& state) {
  Tensor y = new_row(q.size(1) * q.size(3));
  Stage stage = {};
  stage.kind = Stage::Kind::kAttention;
  stage.attention = attention_of(q, k, v, features.heads(), y);
  add_features(features, state, stage.attention);
  stages_.push_back(stage);
  return y;
}

// `stage` says which keys leave; `state` has the cache.
Tensor StageProgram::attend_keys(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Features& features, const std::vector<KeyHeadPlace>& places,
                                 HybridStage hybrid, HybridAttentionState& state) {
  const int64_t heads = q.size(1), width = q.size(3), group = heads / k.size(1);
  fits_ = fits_ && width % 8 == 0 && group <= kMostQueriesTogether && is_bf16(state.k) &&
          is_bf16(state.v) && begins_at_pack(state.k) && begins_at_pack(state.v);
  Tensor y = new_row(heads * width);
  hybrid.attention = attention_of(q, k, v, k.size(1), y);
  hybrid.keys = state.k.mutable_raw(), hybrid.values = state.v.mutable_raw();
  hybrid.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(width)));
  hybrid.places = table_of(places);
  if (!features.empty()) {
    add_features(features, state.left, hybrid.attention);
    std::vector<int32_t> pairs = {0};
    for (int64_t h = 0; h < heads; ++h)
      pairs.push_back(
          pairs.back() +
          static_cast<int32_t>(features.counts[static_cast<size_t>(h / features.group())]));
    for (int64_t h = 0; h < heads; h += group)
      hybrid.most_pairs = std::max(
          hybrid.most_pairs, pairs[static_cast<size_t>(h + group)] - pairs[static_cast<size_t>(h)]);
    hybrid.most_states = hybrid.most_pairs / hybrid.attention.sharing;
    hybrid.pairs = table_of(pairs);
  }
  list_.hybrid = true;
  list_.evicts = list_.evicts || hybrid.evicts;
  for (const KeyHeadPlace& place : places) list_.most_keys = std::max(list_.most_keys, place.limit);
  list_.most_group = std::max(list_.most_group, hybrid.attention.group);
  list_.most_block = std::max(list_.most_block, hybrid.block);
  list_.most_pairs = std::max(list_.most_pairs, hybrid.most_pairs);
  list_.most_states = std::max(list_.most_states, hybrid.most_states);
  Stage stage = {};
  stage.kind = Stage::Kind::kHybrid;
  stage.hybrid = hybrid;
  stages_.push_back(stage);
  return y;
}

Tensor StageProgram::hybrid_attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const Features& features, const ExactKeys& exact,
                                           HybridAttentionState& state) {
  std::vector<KeyHeadPlace> places;
  for (const HeadCache& cache : head_caches(exact, k.size(1), 0, 0))
    places.push_back({static_cast<int32_t>(cache.limit), static_cast<int32_t>(cache.first),
                      first_score(exact.with_keys(cache.limit), q.size(1) / k.size(1))});
  HybridStage stage = {};
  stage.score = mutable_floats(state.score);
  stage.block = static_cast<int32_t>(exact.block), stage.sinks = static_cast<int32_t>(exact.sinks);
  stage.recent = static_cast<int32_t>(exact.recent);
  stage.decay = static_cast<float>(exact.decay);
  stage.evicts = true, stage.by_score = exact.policy == KeyPolicy::kAttended;
  return attend_keys(q, k, v, features, places, stage, state);
}

Tensor StageProgram::softmax_attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                                            Tensor& cache_k, Tensor& cache_v) {
  const auto capacity = static_cast<int32_t>(cache_k.size(2));
  std::vector<KeyHeadPlace> places;
  for (int32_t h = 0; h < static_cast<int32_t>(k.size(1)); ++h)
    places.push_back({capacity, h * capacity, 0});
  HybridAttentionState state = {cache_k, cache_v, {}, {}};
  return attend_keys(q, k, v, {}, places, {}, state);
}

bool StageProgram::finish() {
  for (const Stage& stage : stages_)
    if (stage.kind == Stage::Kind::kProduct)
      list_.most_warp_inputs = std::max(list_.most_warp_inputs, stage.product.warp_inputs);
  list_.widest_head = std::max(list_.widest_head, 1);
  list_.count = static_cast<int32_t>(stages_.size());
  fits_ = fits_ && list_.count > 0 && stage_list_fits(list_);
  if (!fits_) return false;
  list_.stages = table_of(stages_);
  return true;
}

void StageProgram::run(int64_t id, int64_t position) {
  require(list_.stages != nullptr, "a token program that was not finished");
  const uint32_t tag = tag_ ^ 1;
  cuda_check(launch_stage_list(list_, id, position, tag, gpu_.context().stream()), "decoding");
  tag_ = tag;  // not if nothing was launched: rows would then look as if they were new
}

const TokenProgramBackend kTokenProgram = {[](const Device& gpu) -> std::unique_ptr<TokenProgram> {
  return std::make_unique<StageProgram>(gpu);
}};

}  // namespace dofla::cuda
