// --device: where a command computes.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "dofla/core/device.h"
#include "dofla/distributed/group.h"

namespace dofla::cli {

class DeviceOption {
 public:
  void add(CLI::App& app) {
    app.add_option("--device", name_, "cpu, cuda, or auto: a GPU if there is one")
        ->capture_default_str()
        ->type_name("NAME")
        ->check(CLI::IsMember({"cpu", "cuda", "auto"}));
  }

  // Ranks on one machine take its GPUs by turns. Throws Error saying what to change where the
  // device that was asked for is not to be had.
  Device get(const Group& group = {}) const { return Device::from_name(name_, group.local_rank()); }

 private:
  std::string name_ = "auto";
};

}  // namespace dofla::cli
