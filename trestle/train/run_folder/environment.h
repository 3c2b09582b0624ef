#pragma once

#include <string>
#include <vector>

#include "trestle/device/device.h"
#include "trestle/device/libtorch_build.h"

// The hardware and software that a run used.
namespace trestle::train {

struct Environment {
  std::string trestle;  // version
  LibtorchBuild libtorch;
  std::string compiler;
  std::string system;  // kernel and architecture
  std::string cpu;
  int cores = 0;
  Bytes memory = 0;  // of the machine
};

Environment environment();

// The time as "2026-01-31T23:59:59Z".
std::string utc_now();

// JSON with the devices of the run, its start time, and `started_in` (run_paths.h).
std::string environment_json(const std::vector<Device>& devices, const std::string& started_in);

// "2 virtual devices of 512 MiB on 2 cores", "cpu, 2 cores", "2 GPUs".
std::string describe_devices(const std::vector<Device>& devices);

}  // namespace trestle::train
