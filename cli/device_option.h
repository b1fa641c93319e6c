// --device: where a command computes.
#pragma once

#include "cli/choice_option.h"
#include "dofla/core/device.h"
#include "dofla/distributed/group.h"

namespace dofla::cli {

class DeviceOption {
 public:
  void add(CLI::App& app) {
    add_choice(app, "--device", choice_, "cpu, cuda, or auto: a GPU if there is one");
  }

  // Ranks on one machine take its GPUs by turns. Throws Error saying what to change where the
  // device that was asked for is not to be had.
  Device get(const Group& group = {}) const { return Device::chosen(choice_, group.local_rank()); }

 private:
  DeviceChoice choice_ = DeviceChoice::kAuto;
};

}  // namespace dofla::cli
