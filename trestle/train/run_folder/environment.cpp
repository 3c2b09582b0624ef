#include "trestle/train/run_folder/environment.h"

#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "trestle/base/counted.h"
#include "trestle/base/text.h"
#include "trestle/device/threads.h"
#include "trestle/train/progress/run_plan.h"

namespace trestle::train {

namespace {

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.rfind("model name", 0) == 0 && line.find(':') != std::string::npos)
      return trim(line.substr(line.find(':') + 1));
  return "";
}

// "512.0 MiB" -> "512 MiB".
std::string short_bytes(Bytes bytes) {
  std::string words = format_bytes(bytes);
  if (const auto zero = words.find(".0 "); zero != std::string::npos) words.erase(zero, 2);
  return words;
}

}  // namespace

std::string utc_now() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char words[32];
  std::strftime(words, sizeof words, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return words;
}

Environment environment() {
  Environment found;
  found.trestle = TRESTLE_VERSION;
  found.libtorch = libtorch_build();
  found.compiler = text("gcc ", __VERSION__);
  utsname system{};
  if (uname(&system) == 0)
    found.system = text(system.sysname, " ", system.release, " ", system.machine);
  found.cpu = cpu_model();
  found.cores = core_count();
  struct sysinfo info {};
  if (sysinfo(&info) == 0) found.memory = static_cast<Bytes>(info.totalram) * info.mem_unit;
  return found;
}

std::string environment_json(const std::vector<Device>& devices, const std::string& started_in) {
  const Environment found = environment();
  nlohmann::ordered_json out = {{"began", utc_now()},
                                {"started_in", started_in},
                                {"trestle", found.trestle},
                                {"libtorch", found.libtorch.version},
                                {"compiler", found.compiler},
                                {"system", found.system},
                                {"cpu", found.cpu},
                                {"cores", found.cores},
                                {"memory_bytes", found.memory},
                                {"mkl", found.libtorch.mkl},
                                {"onednn", found.libtorch.onednn}};
  if (!found.libtorch.cuda.empty()) out["cuda"] = found.libtorch.cuda;
  if (!found.libtorch.cudnn.empty()) out["cudnn"] = found.libtorch.cudnn;
  if (!found.libtorch.nccl.empty()) out["nccl"] = found.libtorch.nccl;
  for (const Device& device : devices)
    out["devices"].push_back(
        {{"name", device_name(device.torch)}, {"budget_bytes", device.budget}});
  return out.dump(2) + "\n";
}

std::string describe_devices(const std::vector<Device>& devices) {
  const std::string cores = counted(core_count(), "core");
  const bool virtuals = std::all_of(devices.begin(), devices.end(), [](const Device& d) {
    return d.torch.type() == at::kPrivateUse1;
  });
  const bool gpus = std::all_of(devices.begin(), devices.end(),
                                [](const Device& d) { return d.torch.is_cuda(); });
  const auto count = static_cast<std::int64_t>(devices.size());
  if (virtuals) {
    const bool equal = std::all_of(devices.begin(), devices.end(),
                                   [&](const Device& d) { return d.budget == devices[0].budget; });
    std::string of = equal && devices[0].budget > 0 ? " of " + short_bytes(devices[0].budget) : "";
    return text(counted(count, "virtual device"), of, " on ", cores);
  }
  if (gpus) return counted(count, "GPU");
  if (devices.size() == 1) return text("cpu, ", cores);
  std::vector<std::string> names;
  for (const Device& device : devices) names.push_back(device_name(device.torch));
  return text(join(names, ", "), ", ", cores);
}

std::string versions() {
  const Environment found = environment();
  return text("trestle ", found.trestle, " · libtorch ", to_string(found.libtorch));
}

}  // namespace trestle::train
