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

  // All ranks of a group. Those on one machine take its GPUs by turns, and are connected where each
  // has one to itself. Throws Error saying what to change where the device that was asked for is
  // not to be had.
  Device get(const Group& group = {}) const {
    Device device = Device::chosen(choice_, group.local_rank());
    group.connect(device);
    return device;
  }

 private:
  DeviceChoice choice_ = DeviceChoice::kAuto;
};

}  // namespace dofla::cli
