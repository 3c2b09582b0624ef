#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// What other programs call the weights of the models that trestle/models has. No torch in here.
// Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// One way of naming. A tensor's name is "<module>.<its own name>", and the module's is translated.
struct NameTable {
  std::string name;                            // for options: "torchvision"
  std::string title;                           // whose names: "torchvision's"
  std::map<std::string, std::string> modules;  // theirs -> ours
};

// The reference programs' ResNet and U-Net, torchvision's ResNet-18, and the well-known U-Net
// (github.com/milesial/Pytorch-UNet).
const std::vector<NameTable>& name_tables();

// Without what wrappers put in front: "module." (DataParallel), "_orig_mod." (torch.compile),
// "model." (Lightning), "partitions.3." (torchgpipe), one after the other.
std::string without_wrappers(std::string_view name);

// What each name of a file is called in a model, and whose names they are.
struct Naming {
  std::string title = "its own";
  std::vector<std::string> names;
};

// The translation under which most names are among `wanted`; names as they are where none is better.
Naming names_of(const std::vector<std::string>& in_file, const std::vector<std::string>& wanted);

// The other way round: what these names of ours are called there. Throws UsageError that lists the
// names which the table does not have.
std::vector<std::string> names_for(const std::vector<std::string>& ours, const NameTable& table);

}  // namespace trestle::checkpoint
