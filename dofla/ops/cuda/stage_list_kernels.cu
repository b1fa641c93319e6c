#include <algorithm>

#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/stage_attention.cuh"
#include "dofla/ops/cuda/stage_embed.cuh"
#include "dofla/ops/cuda/stage_product.cuh"

namespace dofla::cuda {
namespace {

struct Arguments {
  StageList list;
  int64_t id, position;
  Tag tag;
  int slots;
};

// What stands behind the slots in shared memory; after it comes room for the warps' parts of x.
template <int kLanes>
struct Shared {
  Stage stages[kAllThreads / 32];  // one a warp
  uint64_t full[kMostSlots];
  ProductShared product;
  FoundByWarps<kWarps, kLanes> found[2];
};

template <int kLanes>
__device__ void compute(const Arguments& a, TileRing& ring, StageReader& reader,
                        Shared<kLanes>& shared) {
  int turn = 0;
  auto* room = reinterpret_cast<__nv_bfloat16*>(&shared + 1) +
               threadIdx.x / 32 * 2 * a.list.most_warp_inputs;
  while (const Stage* stage = reader.next()) {
    if (stage->kind == Stage::Kind::kProduct) {
      const ProductStage product = stage->product;  // in registers
      compute_product(product, a.tag, ring, turn, shared.product, room);
    } else if (stage->kind == Stage::Kind::kAttention)
      compute_attention<kLanes>(stage->attention, a.position, a.tag, ring, turn, shared.found);
    else
      compute_embedding(stage->embed, a.id, a.position, a.tag);
  }
}

template <int kLanes>
__device__ void fill(const TileRing& ring, StageReader& reader) {
  RingFiller filler = {ring};
  while (const Stage* stage = reader.next()) {
    if (stage->kind == Stage::Kind::kProduct) fill_product(stage->product, filler);
    if (stage->kind == Stage::Kind::kAttention) fill_attention<kLanes>(stage->attention, filler);
  }
  filler.finish();
}

template <int kLanes>
__device__ void end(Tag tag, StageReader& reader, ProductShared& shared) {
  int turn = 0;
  while (const Stage* stage = reader.next()) {
    if (stage->kind == Stage::Kind::kProduct) {
      const ProductStage product = stage->product;  // in registers
      end_product(product, tag, turn, shared);
    } else if (stage->kind == Stage::Kind::kAttention) {
      end_attention<kLanes>(stage->attention, turn);
    }
  }
}

template <int kWidth>
__global__ void __launch_bounds__(kAllThreads, 1) run_stages(const __grid_constant__ Arguments a) {
#if __CUDA_ARCH__ >= 900
  constexpr int kLanes = kWidth / 4;
  unsigned char* memory = shared_memory();
  auto& shared = *reinterpret_cast<Shared<kLanes>*>(memory + a.slots * kSlotBytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < a.slots; ++i) init_barrier(&shared.full[i], 1);
    show_barriers_to_copies();
  }
  const int warp = threadIdx.x / 32;
  StageReader reader(a.list, &shared.stages[warp]);
  TileRing ring = {memory, shared.full, a.slots};
  __syncthreads();
  if (warp == kFillingWarp)
    fill<kLanes>(ring, reader);
  else if (warp == kEndingWarp)
    end<kLanes>(a.tag, reader, shared.product);
  else
    compute<kLanes>(a, ring, reader, shared);
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
  return sizeof(Shared<kWidth / 4>) +
         sizeof(__nv_bfloat16) * kWarps * 2 * static_cast<size_t>(list.most_warp_inputs);
}

template <int kWidth>
int slots_of(const StageList& list) {
  const auto room = static_cast<int64_t>(current_device().shared_bytes) -
                    static_cast<int64_t>(bytes_besides_slots<kWidth>(list));
  return static_cast<int>(std::clamp<int64_t>(room / kSlotBytes, 0, kMostSlots));
}

}  // namespace

bool share_out(ProductStage& p, int blocks) {
  const auto parts = [](int all, int part) { return (all + part - 1) / part; };
  if (blocks < 1 || p.outputs < 1 || p.inputs < 1 || p.inputs % 8 != 0) return false;
  p.blocks = blocks;
  p.warp_inputs = parts(parts(p.inputs, kWindow), kWarps) * kWindow;
  p.tile_rows =
      std::min({kMostTileRows, parts(p.outputs, blocks), kSlotBytes / tile_row_bytes(p.inputs)});
  static_assert(kWarps * kChunk * 2 * sizeof(float) <= kSlotBytes,
                "a norm's vectors find room in a slot");
  const int chunks = p.norm.weight == nullptr ? kMostChunks : 1;
  return p.warp_inputs <= chunks * kChunk && p.tile_rows > 0;
}

int stage_list_blocks() {
  return current_device().multiprocessors;
}

bool stage_list_fits(const StageList& list) {
  bool fits = false;
  const cudaError_t status = with_width(list.widest_head, [&](auto width) {
    fits = slots_of<decltype(width)::value>(list) >= kFewestSlots;
    return cudaSuccess;
  });
  return status == cudaSuccess && fits;
}

cudaError_t launch_stage_list(const StageList& list, int64_t id, int64_t position, uint32_t tag,
                              cudaStream_t stream) {
  return with_width(list.widest_head, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const int slots = slots_of<kWidth>(list);
    if (slots < kFewestSlots) return cudaErrorInvalidValue;
    const size_t bytes =
        static_cast<size_t>(slots) * kSlotBytes + bytes_besides_slots<kWidth>(list);
    const cudaError_t status = cudaFuncSetAttribute(
        run_stages<kWidth>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (status != cudaSuccess) return status;
    // All blocks must run at the same time: they wait for each other.
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t configuration = {};
    configuration.gridDim = dim3(static_cast<unsigned>(current_device().multiprocessors));
    configuration.blockDim = dim3(kAllThreads);
    configuration.dynamicSmemBytes = bytes;
    configuration.stream = stream;
    configuration.attrs = &together;
    configuration.numAttrs = 1;
    return cudaLaunchKernelEx(&configuration, run_stages<kWidth>,
                              Arguments{list, id, position, tag, slots});
  });
}

}  // namespace dofla::cuda
