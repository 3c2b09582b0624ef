#include "trestle/train/calibrate/this_machine.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "trestle/base/text.h"
#include "trestle/train/run_folder/environment.h"

namespace trestle::train {

namespace {

// The driver names the GPUs, so that no device has to be opened.
std::string gpus_of_driver() {
  std::map<std::string, int> models;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", none)) {
    std::ifstream in(entry.path() / "information");
    for (std::string line; std::getline(in, line);)
      if (line.starts_with("Model:")) ++models[trim(line.substr(line.find(':') + 1))];
  }
  std::vector<std::string> words;
  for (const auto& [model, count] : models) words.push_back(text(count, " x ", model));
  return join(words, ", ");
}

}  // namespace

plan::MeasuredOn this_machine() {
  const Environment found = environment();
  constexpr std::size_t day = 10;  // "2026-01-31"
  return {.date = utc_now().substr(0, day),
          .cpu = found.cpu.empty() ? "unknown" : found.cpu,
          .cores = found.cores,
          .memory = static_cast<double>(found.memory),
          .gpu = gpus_of_driver(),
          .trestle = found.trestle,
          .libtorch = to_string(found.libtorch)};
}

}  // namespace trestle::train
