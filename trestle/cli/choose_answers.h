#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trestle/plan/machine/machine.h"

// The answers to the questions of `trestle choose`.
namespace trestle::cli {

// "8", or "2x4": two machines with four devices each.
struct DeviceCount {
  int devices = 0;                                                     // all
  int per_node = 0;                                                    // 0 = not given
  int nodes() const { return per_node > 0 ? devices / per_node : 0; }  // 0 = not given
};
// Throws UsageError for any other text, and for more than plan::most_devices.
DeviceCount parse_device_count(const std::string& words);

// The examples of a step. Throws UsageError for anything but a whole number from 1 to
// plan::most_examples.
std::int64_t parse_batch_answer(const std::string& words);

// Changes the link between nodes to "25Gbit/s,10us". Without a latency the machine's stays. Text
// that is equal to the machine's link, as it is printed, changes nothing. Throws UsageError for
// other text.
void set_link_between(plan::Machine* machine, const std::string& words);

// The link of a recipe's ranks for "--devices": that of --links, or that of the recipe, or nothing
// for one machine. Throws UsageError where --links has no effect, and for several machines without
// a link.
std::string link_of_recipe(const DeviceCount& count, const std::string& given,
                           const std::string& of_recipe);

// Throws UsageError: --links was given, and all devices are in one machine.
[[noreturn]] void refuse_links_of_one_machine(int devices);

// A recipe's file, or the form and sizes of model_by_sizes(): "llama-2-7b", "gpt:layers=24,...",
// "llama:layers=...", "unet:image=192" and "resnet101".
struct ModelAnswer {
  std::filesystem::path recipe = {};
  std::string form = {}, sizes = {};
};
// Throws UsageError for a name that is neither.
ModelAnswer parse_model_answer(const std::string& words);

// The message of model_by_sizes(), which names flags of `trestle plan`, in words of `trestle
// choose`: "Write --unet image=192" becomes "Write unet:image=192".
std::string without_plan_flags(std::string message, const std::string& form);

// The recipe that the question on the model proposes: the only one in the working folder, else
// recipes/unet_quick.toml if it is there, else nothing.
std::string recipe_found_here();

// The name of the first NVIDIA GPU, from the files of its driver. Nothing = there is none.
std::string first_gpu_name(const std::filesystem::path& driver = "/proc/driver/nvidia/gpus");

// The profile in machines/ whose name begins with a word of a GPU's name: "a100-8-per-node" for
// "NVIDIA A100-SXM4-80GB". Nothing = there is none.
std::string machine_of_gpu(const std::string& gpu_name, const std::vector<std::string>& profiles);

}  // namespace trestle::cli
