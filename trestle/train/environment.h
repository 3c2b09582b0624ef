#pragma once

#include <string>
#include <vector>

#include "trestle/device/device.h"

// What a run ran on, for whoever looks at it later.
namespace trestle::train {

struct Environment {
  std::string trestle;  // version
  std::string libtorch;
  std::string compiler;
  std::string system;  // kernel and architecture
  std::string cpu;
  int cores = 0;
  Bytes memory = 0;         // of the machine
  std::string mkl, onednn;  // libtorch's back ends, "" where it has none
};

Environment environment();

// As JSON, with the devices of the run and when it began.
std::string environment_json(const std::vector<Device>& devices);

// "2 virtual devices of 512 MiB on 2 cores", "cpu, 2 cores", "2 GPUs".
std::string describe_devices(const std::vector<Device>& devices);

}  // namespace trestle::train
