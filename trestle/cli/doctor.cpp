#include <torch/cuda.h>
#include <unistd.h>

#include <iostream>
#include <memory>

#include "trestle/base/counted.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/cli/json.h"
#include "trestle/cli/plan_machine.h"
#include "trestle/cli/verbs.h"
#include "trestle/device/virtual_device.h"
#include "trestle/models/model.h"
#include "trestle/models/transformer/attend.h"
#include "trestle/schedule/generate.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/run_folder/environment.h"
#include "trestle/train/task.h"

namespace trestle::cli {

namespace {

Diagnosis::Attention attention() {
  const recipe::Recipe standard;
  const models::AttentionCore core = models::parse_attention_core(standard.transformer.attention);
  return {.field = "transformer.attention",
          .core = models::to_word(core),
          .cpu = models::operator_of(core, c10::DeviceType::CPU),
          .virtual_devices = models::operator_of(core, c10::DeviceType::PrivateUse1),
          .gpus = models::operator_of(core, c10::DeviceType::CUDA)};
}

Diagnosis diagnose(const RunOptions& options) {
  const train::Environment found = train::environment();
  const train::UserParts own = user_parts_of(options);
  Diagnosis diagnosis{.trestle = found.trestle,
                      .libtorch = to_string(found.libtorch),
                      .mkl = found.libtorch.mkl,
                      .onednn = found.libtorch.onednn,
                      .compiler = found.compiler,
                      .system = found.system,
                      .cpu = found.cpu,
                      .cores = found.cores,
                      .memory = found.memory,
                      .virtual_devices = most_virtual_devices,
                      .gpus = static_cast<int>(torch::cuda::device_count()),
                      .schedules = {},
                      .models = models::model_names(),
                      .data_sets = {},
                      .losses = train::loss_names(own),
                      .metrics = train::metric_names(own),
                      .attention = attention()};
  diagnosis.machines = known_machines();
  for (const auto& known : schedule::known_schedules()) diagnosis.schedules.push_back(known.name);
  for (const auto& [name, make] : options.models) diagnosis.models.push_back(name);
  for (const std::string& name : split(train::data_set_names(own), ','))
    diagnosis.data_sets.push_back(trim(name));
  return diagnosis;
}

void print(const Diagnosis& found) {
  const int columns = columns_for_text(STDOUT_FILENO);
  const auto line = [&](std::string name, const std::string& words) {
    constexpr int indent = 10;
    name.resize(indent, ' ');
    std::cout << wrapped(name + words, columns, indent) << "\n";
  };
  line("trestle", found.trestle);
  line("libtorch", text(found.libtorch, found.mkl ? ", MKL" : "", found.onednn ? ", oneDNN" : ""));
  line("compiler", found.compiler);
  line("system", found.system);
  line("cpu", text(found.cpu.empty() ? "unknown" : found.cpu, ", ", counted(found.cores, "core"),
                   " available to this process"));
  line("memory", format_bytes(found.memory));
  line("devices", text("cpu; virtual:N (up to ", found.virtual_devices, " of any size); ",
                       found.gpus > 0 ? text("cuda:0 to cuda:", found.gpus - 1)
                                      : std::string("no GPU that this libtorch can use")));
  line("schedules", join(found.schedules, ", "));
  line("models", join(found.models, ", "));
  line("attention", text("'attention' in [transformer], default ", found.attention.core, ": ",
                         found.attention.cpu, " on cpu, ", found.attention.virtual_devices,
                         " on virtual devices, ", found.attention.gpus, " on GPUs"));
  line("data sets", join(found.data_sets, ", "));
  line("losses", join(found.losses, ", "));
  line("metrics", join(found.metrics, ", "));
  line("machines", found.machines.empty()
                       ? "none: trestle calibrate --out FILE measures this one for trestle plan"
                       : join(found.machines, ", "));
  std::cout << std::flush;
}

}  // namespace

void add_doctor(Verb app, const RunOptions& options) {
  Verb verb = app.add_verb(
      "doctor", "Show versions, devices, cores, memory, and the names that recipes can use");
  auto json = std::make_shared<bool>(false);
  verb.add_switch("--json", *json, "Print one JSON object");
  verb.footer(examples({"trestle doctor", "trestle doctor --json"}) + exit_codes());
  verb.action([json, &options] {
    const Diagnosis found = diagnose(options);
    if (*json)
      std::cout << to_json(found) << std::endl;
    else
      print(found);
    return 0;
  });
}

}  // namespace trestle::cli
