#include <vector>

#include "dofla/core/device_cuda.h"
#include "dofla/core/device_recording.h"
#include "dofla/core/error.h"

namespace dofla {
namespace {

constexpr const char* kWhat = "recording work for the GPU";

struct DestroyGraph {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
using CapturedGraph = std::unique_ptr<CUgraph_st, DestroyGraph>;

// What `work` gives to the stream instead of its running.
CapturedGraph capture(CudaContext& context, const std::function<void()>& work) {
  // Relaxed, because tensors may still ask the driver for memory.
  cuda_check(cudaStreamBeginCapture(context.stream(), cudaStreamCaptureModeRelaxed), kWhat);
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(context.stream(), &graph);
    cudaGetLastError();  // a capture that was cut short
    const CapturedGraph unfinished(graph);
    throw;
  }
  const cudaError_t status = cudaStreamEndCapture(context.stream(), &graph);
  CapturedGraph captured(graph);
  cuda_check(status, kWhat);
  return captured;
}

}  // namespace

struct Recording::Graph {
  Device gpu;
  std::vector<std::shared_ptr<void>> memory;
  cudaGraphExec_t executable = nullptr;

  explicit Graph(const Device& device) : gpu(device) {}
  ~Graph() {
    cudaStreamSynchronize(gpu.context().stream());  // a replay may still run
    if (executable != nullptr) cudaGraphExecDestroy(executable);
  }
};

Recording::Recording(const Device& gpu, const std::function<void()>& work)
    : graph_(std::make_unique<Graph>(gpu)) {
  CudaContext& context = gpu.context();
  require(context.recorded == nullptr, "a recording within a recording");
  struct NoteMemory {
    CudaContext& context;
    ~NoteMemory() { context.recorded = nullptr; }
  } note{context};
  context.recorded = &graph_->memory;
  const CapturedGraph graph = capture(context, work);
  cuda_check(cudaGraphInstantiate(&graph_->executable, graph.get(), 0), kWhat);
}

Recording::~Recording() = default;

void Recording::replay() {
  cuda_check(cudaGraphLaunch(graph_->executable, graph_->gpu.context().stream()),
             "replaying recorded work");
}

}  // namespace dofla
