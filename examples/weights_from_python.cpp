// Weights to and from Python: writes what torch.load reads, and loads what another program named its
// own way.
#include <trestle/trestle.h>

#include <filesystem>
#include <iostream>

int main() {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "trestle_weights";
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "resnet18.pt").string();

  // Stands for a file from Python: torchvision's names, behind what DistributedDataParallel adds.
  {
    const trestle::nn::Layers net = trestle::models::resnet18({.width = 8, .seed = 1});
    trestle::NamedTensors all = net.named_parameters();
    for (const auto& buffer : net.named_buffers()) all.push_back(buffer);
    all = trestle::checkpoint::rename_weights(all, "torchvision");
    for (auto& [name, tensor] : all) name = "module." + name;
    trestle::checkpoint::write_weights(path, all);
  }

  // [use]
  // What is in a file, without reading it.
  const auto list = trestle::checkpoint::list_weights(path);
  std::cout << list.size() << " tensors, the first is " << list[0].name << " "
            << at::IntArrayRef(list[0].shape) << "\n";

  // All of it, by name. A name that does not fit is an error that lists every one.
  trestle::nn::Layers net = trestle::models::resnet18({.width = 8});
  trestle::checkpoint::load_weights(net, path);

  // What fits, for a net with other classes; the report says what was left as it is.
  trestle::nn::Layers other = trestle::models::resnet18({.classes = 3, .width = 8});
  const auto report = trestle::checkpoint::load_weights(other, path, {.strict = false});
  std::cout << trestle::checkpoint::describe(report) << "\n";
  // [use]

  std::filesystem::remove_all(folder);
  return list.size() == 122 && report.loaded == 120 && report.mismatched.size() == 2 ? 0 : 1;
}
