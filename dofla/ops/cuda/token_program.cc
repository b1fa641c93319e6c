#include "dofla/ops/cuda/token_program.h"

#include <algorithm>

#include "dofla/ops/cuda/head_tensors.h"

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

Tensor StageProgram::linear_attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const Features& features, LinearAttentionState& state) {
  const int64_t width = features.z.size(1), heads = q.size(1);
  fits_ = fits_ && width % 4 == 0 && width <= kWidestHead && begins_at_pack(features.z) &&
          begins_at_pack(features.u) && begins_at_pack(state.b);
  Tensor y = new_row(heads * width);
  Stage stage = {};
  stage.kind = Stage::Kind::kAttention;
  AttentionStage& s = stage.attention;
  s.heads = static_cast<int32_t>(heads), s.group = static_cast<int32_t>(heads / k.size(1));
  s.width = static_cast<int32_t>(width);
  s.sharing = static_cast<int32_t>(features.group());
  const FeatureScales scales = feature_scales(width, features.subtract_norm);
  s.inner_scale = scales.inner, s.norm_scale = scales.norm;
  const int64_t states = features.heads();
  s.q = row_heads(q, states), s.k = row_heads(k, states), s.v = row_heads(v, states);
  s.q_norm = floats(placement_.q_norm), s.k_norm = floats(placement_.k_norm);
  s.epsilon = static_cast<float>(placement_.epsilon);
  s.pairs = static_cast<int32_t>(placement_.frequencies.count());
  s.frequencies = floats(placement_.frequencies);
  placement_ = {};
  s.offsets = static_cast<const int64_t*>(features.gpu_offsets.raw());
  s.z = floats(features.z), s.log_alpha = floats(features.log_alpha);
  s.u = floats(features.u), s.norm_weight = floats(features.norm_weight);
  s.sums = {mutable_floats(state.log_max), mutable_floats(state.a), mutable_floats(state.b)};
  s.y = mutable_floats(y);
  stages_.push_back(stage);
  return y;
}

bool StageProgram::finish() {
  const AttentionStage* attention = nullptr;  // the first one
  for (const Stage& stage : stages_) {
    if (stage.kind == Stage::Kind::kProduct)
      list_.most_warp_inputs = std::max(list_.most_warp_inputs, stage.product.warp_inputs);
    if (stage.kind != Stage::Kind::kAttention) continue;
    list_.widest_head = std::max(list_.widest_head, stage.attention.width);
    const bool untied = stage.attention.u != nullptr, first = attention == nullptr;
    if (first) attention = &stage.attention, list_.untied = untied;
    fits_ = fits_ && list_.untied == untied;
  }
  list_.widest_head = std::max(list_.widest_head, 1);
  list_.count = static_cast<int32_t>(stages_.size());
  fits_ = fits_ && list_.count > 0 && stage_list_fits(list_);
  if (!fits_) return false;
  const auto bytes = static_cast<int64_t>(stages_.size() * sizeof(Stage));
  on_gpu_ = Tensor({bytes}, DType::kU8, gpu_);
  copy_bytes(Device(), stages_.data(), gpu_, on_gpu_.mutable_raw(), bytes);
  list_.stages = static_cast<const Stage*>(on_gpu_.raw());
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
