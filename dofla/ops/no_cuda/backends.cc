// Linked instead of ops/cuda where dofla is built without CUDA. No tensor can then be on a GPU, so
// that nothing calls these: they let the operations pick their device without #ifdef.
#include "dofla/ops/activation.h"
#include "dofla/ops/adam.h"
#include "dofla/ops/cross_entropy.h"
#include "dofla/ops/dense.h"
#include "dofla/ops/divergence.h"
#include "dofla/ops/embedding.h"
#include "dofla/ops/exact_keys.h"
#include "dofla/ops/feature_loss.h"
#include "dofla/ops/feature_step.h"
#include "dofla/ops/heads.h"
#include "dofla/ops/hybrid_attention.h"
#include "dofla/ops/linear_attention.h"
#include "dofla/ops/matmul.h"
#include "dofla/ops/norm.h"
#include "dofla/ops/ridge_traces.h"
#include "dofla/ops/rounding.h"
#include "dofla/ops/row_gather.h"
#include "dofla/ops/rows.h"
#include "dofla/ops/sampling.h"
#include "dofla/ops/softmax_attention.h"
#include "dofla/ops/token_program.h"

namespace dofla::cuda {

const ActivationBackend kActivation = {};
const AdamBackend kAdam = {};
const CrossEntropyBackend kCrossEntropy = {};
const DivergenceBackend kDivergence = {};
const EmbeddingBackend kEmbedding = {};
const ExactKeysBackend kExactKeys = {};
const FeatureLossBackend kFeatureLoss = {};
const FeatureStepBackend kFeatureStep = {};
const FewRowBackend kFewRow = {};
const HeadsBackend kHeads = {};
const HybridAttentionBackend kHybridAttention = {};
const LinearAttentionBackend kLinearAttention = {};
const MatmulBackend kMatmul = {};
const NormForward kNorm = {};
const NormBackward kNormBackward = {};
const RidgeTracesBackend kRidgeTraces = {};
const RoundingBackend kRounding = {};
const RowGatherBackend kRowGather = {};
const RowsBackend kRows = {};
const SamplingBackend kSampling = {};
const SoftmaxAttentionBackend kSoftmaxAttention = {};
const TokenProgramBackend kTokenProgram = {};

}  // namespace dofla::cuda
