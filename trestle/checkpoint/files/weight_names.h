#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// Other programs' names for the weights of the models in trestle/models. Torch-free. Internal to
// trestle/checkpoint.
namespace trestle::checkpoint {

// One naming scheme. A tensor's name is "<module>.<its own name>", and the module's is translated.
struct NameTable {
  std::string name;                            // for options: "torchvision"
  std::string title;                           // whose names: "torchvision's"
  std::map<std::string, std::string> modules;  // theirs -> ours
};

// The reference programs' ResNet and U-Net, torchvision's ResNet-18, and the well-known U-Net
// (github.com/milesial/Pytorch-UNet).
const std::vector<NameTable>& name_tables();

// Removes the prefixes of wrappers, repeatedly: "module." (DataParallel), "_orig_mod."
// (torch.compile), "model." (Lightning), "partitions.3." (torchgpipe).
std::string without_wrappers(std::string_view name);

// The model's name for each name of a file, and whose names the file has.
struct Naming {
  std::string title = "its own";
  std::vector<std::string> names;
};

// The translation with the most names among `wanted`; the unchanged names if none is better.
Naming names_of(const std::vector<std::string>& in_file, const std::vector<std::string>& wanted);

// The reverse: the other program's names for our names. Throws UsageError that lists the names
// missing in the table.
std::vector<std::string> names_for(const std::vector<std::string>& ours, const NameTable& table);

}  // namespace trestle::checkpoint
