// Weights to and from Python: writes a file that torch.load reads, and loads a file in which
// another program named the weights differently.
#include <trestle/trestle.h>

#include <filesystem>
#include <iostream>

int main() {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "trestle_weights";
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "resnet18.pt").string();

  // Imitates a file from Python: torchvision's names, with DistributedDataParallel's prefix
  // "module.".
  {
    const trestle::nn::Layers net = trestle::models::resnet18({.width = 8, .seed = 1});
    trestle::NamedTensors all = net.named_parameters();
    for (const auto& buffer : net.named_buffers()) all.push_back(buffer);
    all = trestle::checkpoint::rename_weights(all, "torchvision");
    for (auto& [name, tensor] : all) name = "module." + name;
    trestle::checkpoint::write_weights(path, all);
  }

  // [use]
  // List the tensors of a file without reading their data.
  const auto list = trestle::checkpoint::list_weights(path);
  std::cout << list.size() << " tensors, the first is " << list[0].name << " "
            << at::IntArrayRef(list[0].shape) << "\n";

  // Load all weights by name. Names that do not match are an error that lists them all.
  trestle::nn::Layers net = trestle::models::resnet18({.width = 8});
  trestle::checkpoint::load_weights(net, path);

  // Load the weights that fit a net with other classes. The report lists the weights left
  // unchanged.
  trestle::nn::Layers other = trestle::models::resnet18({.classes = 3, .width = 8});
  const auto report = trestle::checkpoint::load_weights(other, path, {.strict = false});
  std::cout << trestle::checkpoint::describe(report) << "\n";
  // [use]

  std::filesystem::remove_all(folder);
  return list.size() == 122 && report.loaded == 120 && report.mismatched.size() == 2 ? 0 : 1;
}
