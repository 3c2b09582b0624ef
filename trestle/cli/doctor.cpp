#include <torch/cuda.h>

#include <iostream>

#include "trestle/base/counted.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/cli/verbs.h"
#include "trestle/device/virtual_device.h"
#include "trestle/models/model.h"
#include "trestle/schedule/generate.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/run_folder/environment.h"
#include "trestle/train/task.h"

namespace trestle::cli {

namespace {

int diagnose(const RunOptions& options) {
  const train::Environment found = train::environment();
  std::cout << "trestle   " << found.trestle << "\n"
            << "libtorch  " << to_string(found.libtorch) << (found.libtorch.mkl ? ", MKL" : "")
            << (found.libtorch.onednn ? ", oneDNN" : "") << "\n"
            << "compiler  " << found.compiler << "\n"
            << "system    " << found.system << "\n"
            << "cpu       " << (found.cpu.empty() ? "unknown" : found.cpu) << ", "
            << counted(found.cores, "core") << " available to this process\n"
            << "memory    " << format_bytes(found.memory) << "\n"
            << "devices   cpu; virtual:N (up to " << most_virtual_devices << " of any size); ";
  const auto gpus = torch::cuda::device_count();
  if (gpus > 0)
    std::cout << "cuda:0 to cuda:" << gpus - 1 << "\n";
  else
    std::cout << "no GPU that this libtorch can use\n";
  std::vector<std::string> schedules;
  for (const auto& known : schedule::known_schedules()) schedules.push_back(known.name);
  std::vector<std::string> models = models::model_names();
  for (const auto& [name, make] : options.models) models.push_back(name);
  const train::UserParts own = user_parts_of(options);
  std::cout << "schedules " << join(schedules, ", ") << "\n"
            << "models    " << join(models, ", ") << "\n"
            << "data sets " << train::data_set_names(own) << "\n"
            << "losses    " << join(train::loss_names(own), ", ") << "\n"
            << "metrics   " << join(train::metric_names(own), ", ") << std::endl;
  return 0;
}

}  // namespace

void add_doctor(Verb app, const RunOptions& options) {
  Verb verb = app.add_verb(
      "doctor", "Show versions, devices, cores, memory, and the names that recipes can use");
  verb.footer(examples({"trestle doctor"}));
  verb.action([&options] { return diagnose(options); });
}

}  // namespace trestle::cli
