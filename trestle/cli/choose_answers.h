#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

// The answers to the questions of `trestle choose`.
namespace trestle::cli {

// "8", or "2x4": two machines with four devices each.
struct DeviceCount {
  int devices = 0;   // all
  int per_node = 0;  // 0 = not given
};
// Throws UsageError for any other text, and for more than 2^20 devices.
DeviceCount parse_device_count(const std::string& words);

// A recipe's file, or the form and sizes of model_by_sizes(): "llama-2-7b", "gpt:layers=24,...",
// "llama:layers=...", "unet:image=192" and "resnet101".
struct ModelAnswer {
  std::filesystem::path recipe = {};
  std::string form = {}, sizes = {};
};
// Throws UsageError for a name that is neither.
ModelAnswer parse_model_answer(const std::string& words);

// The recipe that the question on the model proposes: the only one in the working folder, else
// recipes/unet_quick.toml if it is there, else nothing.
std::string recipe_found_here();

// The name of the first NVIDIA GPU, from the files of its driver. Nothing = there is none.
std::string first_gpu_name(const std::filesystem::path& driver = "/proc/driver/nvidia/gpus");

// The profile in machines/ whose name begins with a word of a GPU's name: "a100-8-per-node" for
// "NVIDIA A100-SXM4-80GB". Nothing = there is none.
std::string machine_of_gpu(const std::string& gpu_name, const std::vector<std::string>& profiles);

}  // namespace trestle::cli
