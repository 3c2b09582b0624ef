#include <torch/cuda.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "apps/trestle/verbs.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/device/virtual_device.h"
#include "trestle/models/model.h"
#include "trestle/schedule/generate.h"
#include "trestle/train/data_set.h"
#include "trestle/train/environment.h"

namespace trestle::app {

namespace {

int diagnose() {
  const train::Environment found = train::environment();
  std::cout << "trestle   " << found.trestle << "\n"
            << "libtorch  " << found.libtorch << (found.mkl.empty() ? "" : ", MKL")
            << (found.onednn.empty() ? "" : ", oneDNN") << "\n"
            << "compiler  " << found.compiler << "\n"
            << "system    " << found.system << "\n"
            << "cpu       " << (found.cpu.empty() ? "unknown" : found.cpu) << ", " << found.cores
            << (found.cores == 1 ? " core" : " cores") << " for this process\n"
            << "memory    " << format_bytes(found.memory) << "\n"
            << "devices   cpu; virtual:N (up to " << most_virtual_devices << " of any size); ";
  const auto gpus = torch::cuda::device_count();
  if (gpus > 0)
    std::cout << "cuda:0 to cuda:" << gpus - 1 << "\n";
  else
    std::cout << "no GPU that this libtorch can use\n";
  std::vector<std::string> schedules;
  for (const auto& known : schedule::known_schedules()) schedules.push_back(known.name);
  std::cout << "schedules " << join(schedules, ", ") << "\n"
            << "models    " << join(models::model_names(), ", ") << "\n"
            << "data sets " << train::data_set_names() << std::endl;
  return 0;
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  CLI::App* verb = app.add_subcommand(
      "doctor", "Show versions, devices, cores, memory, and the names that recipes can use");
  verb->footer(examples({"trestle doctor"}));
  verb->callback([&action] { action = diagnose; });
}

}  // namespace trestle::app
