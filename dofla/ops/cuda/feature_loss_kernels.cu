#include <limits>

#include "dofla/ops/cuda/feature_loss_kernels.h"
#include "dofla/ops/cuda/feature_loss_plan.h"
#include "dofla/ops/cuda/head_rows.cuh"

namespace dofla::cuda {
namespace feature_pairs {
namespace {

struct Device {
  int processors, shared_per_block, shared_per_processor;
};

cudaError_t current_device(Device* device) {
  int id = 0;
  cudaError_t status = cudaGetDevice(&id);
  const auto read = [&](int* value, cudaDeviceAttr what) {
    if (status == cudaSuccess) status = cudaDeviceGetAttribute(value, what, id);
  };
  read(&device->processors, cudaDevAttrMultiProcessorCount);
  read(&device->shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  read(&device->shared_per_processor, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  return status;
}

struct PairShape {
  int groups, stages;
};

size_t shared_bytes(const Plan& plan, PairShape shape, bool foreign) {
  return static_cast<size_t>(
             shared_tiles(plan.parts, plan.kernel_width, shape.groups, shape.stages, foreign)) *
             kTileBytes +
         sizeof(PairState);
}

// kNarrowBlocks blocks of one warp group share a multiprocessor if they fit; a block of two groups
// has it to itself. A second stage, which loads keys ahead, is used if there is still shared
// memory.
PairShape choose_shape(const Plan& plan, const Device& device, bool wide, bool foreign) {
  constexpr int kReserved = 1024;  // by the driver, for every block
  const auto fits = [&](PairShape shape, int limit) {
    return shared_bytes(plan, shape, foreign) <= static_cast<size_t>(limit);
  };
  if (wide)
    for (const int stages : {2, 1})
      if (fits({2, stages}, device.shared_per_block)) return {2, stages};
  for (const int limit :
       {device.shared_per_processor / kNarrowBlocks - kReserved, device.shared_per_block})
    for (const int stages : {2, 1})
      if (fits({1, stages}, limit)) return {1, stages};
  return {0, 0};
}

struct Layout {
  Plan plan;
  PairShape narrow, wide;
  bool foreign;      // some head has more than one window
  bool copy_inputs;  // q and k are not rows of the kernel's width in packs of bf16
  int blocks;        // of a kernel over pairs
};

bool in_int(int64_t value) {
  return value >= 1 && value <= std::numeric_limits<int>::max();
}

// Sizes that are indices of type int on the device are checked to be such.
cudaError_t lay_out(const FeatureLossProblem& problem, const FeatureLossInputs& inputs,
                    Layout* out) {
  const FeatureLossProblem& p = problem;
  if (p.batch < 1 || p.batch > 4096 || p.heads < 1 || p.heads > kMostHeads || p.key_heads < 1 ||
      p.heads % p.key_heads != 0 || (p.sharing != 1 && p.sharing != p.heads / p.key_heads) ||
      p.width < 1 || p.width > kWidestHead || !in_int(p.batch * p.heads) || p.tokens < 1 ||
      p.tokens > (1 << 24) || p.block < 1 || kTile % p.block != 0 || p.tokens % p.block != 0 ||
      (p.block != 1 && !p.causal))
    return cudaErrorInvalidValue;
  Device device;
  const cudaError_t status = current_device(&device);
  if (status != cudaSuccess) return status;
  Plan plan{};
  plan.batch = static_cast<int>(p.batch);
  plan.heads = static_cast<int>(p.heads);
  plan.tokens = static_cast<int>(p.tokens);
  plan.width = static_cast<int>(p.width);
  plan.parts = p.element == Element::kBF16 ? 1 : 3;
  plan.kernel_width = p.width <= 64 ? 64 : 128;
  plan.tiles = (plan.tokens + kTile - 1) / kTile;
  plan.pairs = (plan.tiles + 1) / 2;
  plan.causal = p.causal;
  plan.block = static_cast<int>(p.block);
  plan.padded_rest = p.padded_rest;
  plan.sequence_scale = p.loss == PairLoss::kL2 && p.sequence_scale;
  plan.subtract_norm = p.subtract_norm;
  plan.untied = inputs.u != nullptr;
  plan.sharing = static_cast<int>(p.sharing);
  plan.loss = p.loss;
  int64_t total = 0, padded_total = 0, most = 0;
  for (int h = 0; h < plan.heads; ++h) {
    const int64_t count = p.counts[h / p.sharing];
    if (count < 1 || count > (1 << 20)) return cudaErrorInvalidValue;
    total += count;
    padded_total += (count + 15) / 16 * 16;
    most = count > most ? count : most;
  }
  out->narrow = choose_shape(plan, device, false, false);
  out->wide = choose_shape(plan, device, most > kTile, most > 2 * kTile);
  if (out->narrow.groups == 0 || out->wide.groups == 0) return cudaErrorInvalidValue;
  plan.wide_window = out->wide.groups * kTile;
  out->foreign = most > plan.wide_window;
  if (out->foreign && most <= 2 * kTile) {  // one group has to do for a wide head
    out->wide = choose_shape(plan, device, false, true);
    if (out->wide.groups == 0) return cudaErrorInvalidValue;
  }
  int64_t narrow_items = 0, wide_items = 0;
  for (int h = 0; h < plan.heads; ++h) {
    const int64_t each = int64_t{plan.batch} * plan.pairs, count = p.counts[h / p.sharing];
    if (count <= kTile)
      narrow_items += each;
    else
      wide_items += each * ((count + plan.wide_window - 1) / plan.wide_window);
  }
  if (!in_int(total) || !in_int(padded_total) || !in_int(narrow_items + wide_items))
    return cudaErrorInvalidValue;
  plan.total = static_cast<int>(total);
  plan.padded_total = static_cast<int>(padded_total);
  plan.narrow_items = static_cast<int>(narrow_items);
  plan.wide_items = static_cast<int>(wide_items);
  out->copy_inputs = plan.parts != 1 || plan.width != plan.kernel_width ||
                     !in_packs(inputs.q, p.element, p.width) ||
                     !in_packs(inputs.k, p.element, p.width);
  out->blocks = kNarrowBlocks * device.processors;
  out->plan = plan;
  return cudaSuccess;
}

// Divides one allocation into pieces aligned to 256 bytes; without memory, only adds up their size.
struct Pieces {
  unsigned char* memory;
  int64_t used = 0;

  template <class T>
  T* allocate(int64_t count) {
    T* piece = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + used);
    used += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return piece;
  }
};

Workspace arrange(const Layout& layout, const FeatureLossProblem& problem,
                  const FeatureLossInputs& inputs, Pieces& pieces) {
  const Plan& plan = layout.plan;
  Workspace work{};
  work.rest = inputs.rest;
  work.heads = pieces.allocate<HeadPlan>(plan.heads);
  work.next_item = pieces.allocate<int>(2);
  work.offsets = pieces.allocate<float>(plan.padded_total);
  work.balance = pieces.allocate<float>(plan.padded_total);
  work.balance_parts = pieces.allocate<float>(int64_t{2} * kBalanceSequences * plan.padded_total);
  if (plan.row_sums_from_features()) {
    work.key_sums = pieces.allocate<float>(int64_t{plan.batch} * plan.tiles * plan.padded_total);
    work.earlier = pieces.allocate<float>(int64_t{plan.batch} * plan.heads * plan.tokens);
  }
  if (plan.sequence_scale)
    work.some_logits = pieces.allocate<float>(int64_t{plan.batch} * plan.heads);
  for (int i = 0; i < 2; ++i) {
    Side& side = work.side[i];
    side.x_heads = static_cast<int>(i == 0 ? problem.heads : problem.key_heads);
    side.x = i == 0 ? inputs.q : inputs.k;
    if (layout.copy_inputs) {
      side.part_step = int64_t{plan.batch} * side.x_heads * plan.tokens * plan.kernel_width;
      work.x_parts[i] = pieces.allocate<__nv_bfloat16>(plan.parts * side.part_step);
      side.x = heads_then_tokens<const void>(work.x_parts[i], side.x_heads, plan.tokens,
                                             plan.kernel_width);
    }
    side.factors = pieces.allocate<__nv_bfloat16>(kFactorPlanes * plan.plane_step());
    side.logs = pieces.allocate<float>(plan.plane_step());
    side.peaks = pieces.allocate<float>(int64_t{plan.batch} * plan.heads * plan.tokens);
    side.directions = i == 1 && !plan.untied
                          ? work.side[0].directions
                          : pieces.allocate<__nv_bfloat16>(int64_t{kFeatureParts} *
                                                           plan.padded_total * plan.kernel_width);
  }
  if (plan.untied) {
    work.side[1].norm_weight = inputs.norm_weight;
    work.side[1].norms = pieces.allocate<float>(int64_t{plan.batch} * plan.heads * plan.tokens);
  }
  const int64_t partial_rows = plan.partial_row(plan.items());
  work.partial_z = pieces.allocate<float>((plan.untied ? 4 : 1) * partial_rows * plan.kernel_width);
  work.partial_alpha = pieces.allocate<float>(partial_rows);
  if (plan.untied) {
    work.partial_norm = pieces.allocate<float>(partial_rows);
    work.norm_rows = pieces.allocate<double>(plan.total / plan.sharing);
  }
  work.results = pieces.allocate<ItemResult>(plan.items());
  work.weights = pieces.allocate<float>(plan.items());
  work.pairs = pieces.allocate<float2>(int64_t{layout.blocks} * kTile * kTile);
  return work;
}

cudaError_t run_pairs(const Layout& layout, const Workspace& work, bool wide, cudaStream_t stream) {
  const Plan& plan = layout.plan;
  const PairShape shape = wide ? layout.wide : layout.narrow;
  const int items = wide ? plan.wide_items : plan.narrow_items;
  if (items == 0) return cudaSuccess;
  const PairTask task{plan,  work,         wide ? plan.narrow_items : 0,
                      items, shape.stages, work.next_item + (wide ? 1 : 0)};
  const PairLaunch how{shape.groups, items < layout.blocks ? items : layout.blocks,
                       shared_bytes(plan, shape, wide && layout.foreign)};
  switch (plan.loss) {
    case PairLoss::kSoftmax:
      return (plan.untied ? untied_softmax_pairs : softmax_pairs)(task, how, stream);
    case PairLoss::kL2:
      return (plan.untied ? untied_l2_pairs : l2_pairs)(task, how, stream);
    case PairLoss::kAttentionMse:
      return (plan.untied ? untied_attention_mse_pairs : attention_mse_pairs)(task, how, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace
}  // namespace feature_pairs

cudaError_t feature_loss_workspace(const FeatureLossProblem& problem,
                                   const FeatureLossInputs& inputs, int64_t* bytes) {
  feature_pairs::Layout layout;
  const cudaError_t status = feature_pairs::lay_out(problem, inputs, &layout);
  if (status != cudaSuccess) return status;
  feature_pairs::Pieces pieces{nullptr};
  feature_pairs::arrange(layout, problem, inputs, pieces);
  *bytes = pieces.used;
  return cudaSuccess;
}

cudaError_t launch_feature_loss(const FeatureLossProblem& problem, const FeatureLossInputs& inputs,
                                const FeatureLossOutputs& outputs, void* workspace,
                                cudaStream_t stream) {
  using namespace feature_pairs;
  Layout layout;
  cudaError_t status = lay_out(problem, inputs, &layout);
  if (status != cudaSuccess) return status;
  Pieces pieces{static_cast<unsigned char*>(workspace)};
  const Workspace work = arrange(layout, problem, inputs, pieces);
  status = write_plan(layout.plan, problem.counts, work, stream);
  if (status == cudaSuccess)
    status = split_inputs(layout.plan, work, inputs, layout.copy_inputs, stream);
  if (status == cudaSuccess) status = find_balance(layout.plan, work, stream);
  if (status == cudaSuccess) status = write_factors(layout.plan, work, stream);
  if (status == cudaSuccess && layout.plan.sequence_scale)
    status = find_some_logits(layout.plan, work, stream);
  if (status == cudaSuccess) status = run_pairs(layout, work, true, stream);
  if (status == cudaSuccess) status = run_pairs(layout, work, false, stream);
  if (status == cudaSuccess) status = sum_items(layout.plan, work, outputs, stream);
  return status;
}

}  // namespace dofla::cuda
