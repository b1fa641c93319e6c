#include <algorithm>

#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/stage_attention.cuh"
#include "dofla/ops/cuda/stage_embed.cuh"
#include "dofla/ops/cuda/stage_hybrid.cuh"
#include "dofla/ops/cuda/stage_product.cuh"

namespace dofla::cuda {
namespace {

struct Arguments {
  StageList list;
  int64_t id, position;
  Tag tag;
  int slots;
};

// Shared memory after the slots; the warps' parts of x follow it, in a product, or what hybrid
// attention keeps.
template <int kLanes>
struct Shared {
  Stage stages[StageBlock::kThreads / 32];  // one a warp
  uint64_t full[RingSlots::kMost];
  ProductShared product;
  FoundByWarps<StageBlock::kConsumerWarps, kLanes> found[2];
};

template <int kWidth, bool kUntied, bool kHybrid>
__device__ void run_consumers(const Arguments& a, RingBuffer& ring, StageReader& reader,
                              Shared<kWidth / 4>& shared) {
  constexpr int kLanes = kWidth / 4;
  int buffer = 0;
  auto* parts = reinterpret_cast<__nv_bfloat16*>(&shared + 1) +
                threadIdx.x / 32 * 2 * a.list.most_warp_inputs;
  while (const Stage* stage = reader.next()) {
    if (stage->kind == Stage::Kind::kProduct) {
      const ProductStage product = stage->product;  // in registers
      compute_product(product, a.tag, ring, buffer, shared.product, parts);
    } else if (stage->kind == Stage::Kind::kAttention)
      compute_attention<kLanes, kUntied>(stage->attention, a.position, a.tag, ring, buffer,
                                         shared.found);
    else if (stage->kind == Stage::Kind::kHybrid) {
      if constexpr (kHybrid)
        compute_hybrid<kWidth>(stage->hybrid, a.position, a.tag, ring, buffer, &shared + 1);
    } else
      compute_embedding(stage->embed, a.id, a.position, a.tag);
  }
}

template <int kLanes, bool kHybrid>
__device__ void run_producer(const RingBuffer& ring, int64_t position, StageReader& reader) {
  RingProducer producer = {ring};
  while (const Stage* stage = reader.next()) {
    if (stage->kind == Stage::Kind::kProduct) prefetch_product(stage->product, producer);
    if (stage->kind == Stage::Kind::kAttention)
      prefetch_attention<kLanes>(stage->attention, producer);
    if constexpr (kHybrid)
      if (stage->kind == Stage::Kind::kHybrid) prefetch_hybrid(stage->hybrid, position, producer);
  }
  producer.finish();
}

template <int kLanes, bool kHybrid>
__device__ void run_epilogue(const Arguments& a, StageReader& reader, ProductShared& shared) {
  int buffer = 0;
  while (const Stage* stage = reader.next()) {
    if (stage->kind == Stage::Kind::kProduct) {
      const ProductStage product = stage->product;  // in registers
      finish_product(product, a.tag, buffer, shared);
    } else if (stage->kind == Stage::Kind::kAttention) {
      finish_attention<kLanes>(stage->attention, buffer);
    } else if constexpr (kHybrid) {
      if (stage->kind == Stage::Kind::kHybrid) finish_hybrid(stage->hybrid, a.position, buffer);
    }
  }
}

// Untied features and caches of keys have kernels of their own: what has neither keeps its
// registers.
template <int kWidth, bool kUntied, bool kHybrid>
__global__ void __launch_bounds__(StageBlock::kThreads, 1)
    run_stages(const __grid_constant__ Arguments a) {
#if __CUDA_ARCH__ >= 900
  constexpr int kLanes = kWidth / 4;
  unsigned char* memory = shared_memory();
  auto& shared = *reinterpret_cast<Shared<kLanes>*>(memory + a.slots * RingSlots::kBytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < a.slots; ++i) init_barrier(&shared.full[i], 1);
    show_barriers_to_copies();
  }
  const int warp = threadIdx.x / 32;
  StageReader reader(a.list, &shared.stages[warp]);
  RingBuffer ring = {memory, shared.full, a.slots};
  __syncthreads();
  if (warp == StageBlock::kProducerWarp)
    run_producer<kLanes, kHybrid>(ring, a.position, reader);
  else if (warp == StageBlock::kEpilogueWarp)
    run_epilogue<kLanes, kHybrid>(a, reader, shared.product);
  else
    run_consumers<kWidth, kUntied, kHybrid>(a, ring, reader, shared);
#endif
}

struct Current {
  int multiprocessors = 0, shared_bytes = 0;  // 0 where there is no such kernel
};

Current current_device() {
  Current found;
#ifdef DOFLA_SM90A
  int device = 0, major = 0, minor = 0;
  const auto attribute = [&](int& to, cudaDeviceAttr of) {
    return cudaDeviceGetAttribute(&to, of, device) == cudaSuccess;
  };
  if (cudaGetDevice(&device) != cudaSuccess ||
      !attribute(major, cudaDevAttrComputeCapabilityMajor) ||
      !attribute(minor, cudaDevAttrComputeCapabilityMinor) || major != 9 || minor != 0 ||
      !attribute(found.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin) ||
      !attribute(found.multiprocessors, cudaDevAttrMultiProcessorCount))
    return {};
#endif
  return found;
}

template <int kWidth>
size_t bytes_besides_slots(const StageList& list) {
  const size_t parts = sizeof(__nv_bfloat16) * StageBlock::kConsumerWarps * 2 *
                       static_cast<size_t>(list.most_warp_inputs);
  const HybridSizes sizes = {
      list.most_keys,   list.most_block,           list.evicts, list.most_group, list.most_pairs,
      list.most_states, StageBlock::kConsumerWarps};
  const size_t hybrid =
      list.hybrid ? static_cast<size_t>(stage_lists<kWidth>(sizes, 0).end) : size_t{0};
  return sizeof(Shared<kWidth / 4>) + std::max(parts, hybrid);
}

template <int kWidth>
int slots_of(const StageList& list) {
  const auto available = static_cast<int64_t>(current_device().shared_bytes) -
                         static_cast<int64_t>(bytes_besides_slots<kWidth>(list));
  return static_cast<int>(std::clamp<int64_t>(available / RingSlots::kBytes, 0, RingSlots::kMost));
}

}  // namespace

bool share_out(ProductStage& p, int blocks) {
  const auto parts = [](int all, int part) { return (all + part - 1) / part; };
  if (blocks < 1 || p.outputs < 1 || p.inputs < 1 || p.inputs % 8 != 0) return false;
  p.blocks = blocks;
  p.warp_inputs = parts(parts(p.inputs, ProductWindow::kInputs), StageBlock::kConsumerWarps) *
                  ProductWindow::kInputs;
  p.tile_rows = std::min({StageBlock::kMostTileRows, parts(p.outputs, blocks),
                          RingSlots::kBytes / tile_row_bytes(p.inputs)});
  static_assert(
      StageBlock::kConsumerWarps * InputChunk::kSize * 2 * sizeof(float) <= RingSlots::kBytes,
      "a norm's vectors fit a slot");
  const int chunks = p.norm.weight == nullptr ? InputChunk::kMost : 1;
  return p.warp_inputs <= chunks * InputChunk::kSize && p.tile_rows > 0;
}

int stage_list_blocks() {
  return current_device().multiprocessors;
}

bool stage_list_fits(const StageList& list) {
  bool fits = false;
  const cudaError_t status = with_width(list.widest_head, [&](auto width) {
    fits = slots_of<decltype(width)::value>(list) >= RingSlots::kFewest;
    return cudaSuccess;
  });
  return status == cudaSuccess && fits;
}

cudaError_t launch_stage_list(const StageList& list, int64_t id, int64_t position, uint32_t tag,
                              cudaStream_t stream) {
  return with_width(list.widest_head, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const int slots = slots_of<kWidth>(list);
    if (slots < RingSlots::kFewest) return cudaErrorInvalidValue;
    const size_t bytes =
        static_cast<size_t>(slots) * RingSlots::kBytes + bytes_besides_slots<kWidth>(list);
    const auto kernel = list.hybrid && list.untied ? run_stages<kWidth, true, true>
                        : list.hybrid              ? run_stages<kWidth, false, true>
                        : list.untied              ? run_stages<kWidth, true, false>
                                                   : run_stages<kWidth, false, false>;
    const cudaError_t status = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (status != cudaSuccess) return status;
    // All blocks must run at the same time: they wait for each other.
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t configuration = {};
    configuration.gridDim = dim3(static_cast<unsigned>(current_device().multiprocessors));
    configuration.blockDim = dim3(StageBlock::kThreads);
    configuration.dynamicSmemBytes = bytes;
    configuration.stream = stream;
    configuration.attrs = &together;
    configuration.numAttrs = 1;
    return cudaLaunchKernelEx(&configuration, kernel, Arguments{list, id, position, tag, slots});
  });
}

}  // namespace dofla::cuda
