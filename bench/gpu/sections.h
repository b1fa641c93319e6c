// The parts of the GPU benchmark: each measures one stage and can be run alone, by its name in
// gpu_bench.cc.
#pragma once

#include "bench/gpu/figures.h"
#include "bench/gpu/workload.h"

namespace dofla::bench {

void teacher_section(const Workload& work, Figures& figures);
void layerwise_section(const Workload& work, Figures& figures);  // steps on random features
void pairs_section(const Workload& work, Figures& figures);      // on those of a real distillation
void direct_section(const Workload& work, Figures& figures);
void prefill_section(const Workload& work, Figures& figures);
void decode_section(const Workload& work, Figures& figures);
void hybrid_section(const Workload& work, Figures& figures);  // exact keys beside features
void finetune_section(const Workload& work, Figures& figures);
void dof_section(const Workload& work, Figures& figures);
void kernels_section(const Workload& work, Figures& figures);

}  // namespace dofla::bench
