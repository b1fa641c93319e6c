#include "dofla/linear/rounded_model.h"

#include "dofla/checkpoint/parameters.h"
#include "dofla/core/version.h"
#include "dofla/linear/student_files.h"
#include "dofla/model/rounded_weights.h"

namespace dofla {

void write_rounded_model(const fs::path& folder, const Checkpoint& source) {
  require_unrounded(source, "round");
  const Checkpoint rounded = with_rounded_weights(source, 8);
  NamedTensors tensors;
  for (const std::string& name : rounded.names())
    if (!is_superfluous(rounded.config(), name)) tensors.emplace_back(name, rounded.tensor(name));
  write_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
  source.require_unchanged();

  Json config = as_student_config(source.config_json());
  for (const char* of_transformers : {"architectures", "auto_map", "torch_dtype", "dtype"})
    config.erase(of_transformers);
  config["weights"] = "int8";
  config["dofla"] = version();
  write_whole(folder / "config.json", config.dump(2) + "\n");
  copy_companions(source.folder(), folder);
}

}  // namespace dofla
