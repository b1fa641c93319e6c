// Every stage on a GPU beside what this GPU can do at most: GPT-2 small, 1024 tokens a sample,
// batch 32, 64 features a head. bench/peers has the same in PyTorch.
//   gpu_bench [--json FILE] [SECTION]...     all sections where none is named
#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "bench/gpu/sections.h"
#include "dofla/core/error.h"

namespace dofla::bench {
namespace {

struct Section {
  std::string_view name;
  void (*run)(const Workload& work, Figures& figures);
};
constexpr Section kSections[] = {
    {"teacher", teacher_section}, {"layerwise", layerwise_section}, {"pairs", pairs_section},
    {"direct", direct_section},   {"prefill", prefill_section},     {"decode", decode_section},
    {"hybrid", hybrid_section},   {"finetune", finetune_section},   {"dof", dof_section},
    {"kernels", kernels_section},
};

struct Arguments {
  fs::path json;
  std::vector<Section> sections;
};

Arguments read_arguments(const std::vector<std::string_view>& words) {
  Arguments arguments;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--json" && i + 1 < words.size()) {
      arguments.json = words[++i];
      continue;
    }
    const auto* found = std::ranges::find(kSections, words[i], &Section::name);
    if (found == std::end(kSections)) {
      std::string names;
      for (const Section& section : kSections) names += fmt::format(" {}", section.name);
      fail("gpu_bench [--json FILE] [SECTION]...: {} is no section; there are{}", words[i], names);
    }
    arguments.sections.push_back(*found);
  }
  if (arguments.sections.empty())
    arguments.sections.assign(std::begin(kSections), std::end(kSections));
  return arguments;
}

void run(const Arguments& arguments) {
  const Device gpu = Device::cuda();
  const Ceilings ceilings = measure_ceilings(gpu);
  const Workload work = make_workload(gpu);
  Figures figures(ceilings, gpu, work.model, arguments.json);
  for (const Section& section : arguments.sections) {
    try {
      section.run(work, figures);
    } catch (const Error& error) {
      figures.missing(section.name, error.what());
    }
  }
}

}  // namespace
}  // namespace dofla::bench

int main(int count, char** words) {
  using namespace dofla::bench;
  Arguments arguments;
  try {
    arguments = read_arguments({words + 1, words + count});
  } catch (const dofla::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
  try {
    run(arguments);
  } catch (const dofla::Error& error) {
    fmt::print("skipped: {}\n", error.what());
  }
}
