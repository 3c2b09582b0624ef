#include "trestle/checkpoint/files/weight_names.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::checkpoint {

namespace {

using Modules = std::map<std::string, std::string>;

// convolution, norm, ReLU, convolution, norm, ReLU in a torch.nn.Sequential.
void add_double_conv(Modules& modules, const std::string& theirs, const std::string& ours) {
  modules[theirs + ".double_conv.0"] = ours + ".conv1";
  modules[theirs + ".double_conv.1"] = ours + ".norm1";
  modules[theirs + ".double_conv.3"] = ours + ".conv2";
  modules[theirs + ".double_conv.4"] = ours + ".norm2";
}

NameTable reference_programs() {
  NameTable table{"reference", "the reference programs'", {}};
  Modules& modules = table.modules;
  modules["input_layer.out.0"] = "input_layer.conv1";
  modules["input_layer.out.1"] = "input_layer.norm1";
  for (int stage = 1; stage <= 4; ++stage)
    for (int block = 1; block <= 2; ++block) {
      const std::string name = text("basic_block", stage, block);
      for (const char* part : {"1", "2"}) {
        modules[name + ".conv" + part] = name + ".conv" + part;
        modules[name + ".bn" + part] = name + ".norm" + part;
      }
      modules[name + ".residual.downsample.out.0"] = name + ".add.conv";
      modules[name + ".residual.downsample.out.1"] = name + ".add.norm";
    }
  modules["output_layer.out.1"] = "output_layer.linear";

  add_double_conv(modules, "InConv", "in");
  for (int i = 1; i <= 4; ++i) {
    add_double_conv(modules, text("down", i, ".maxpool_conv.1"), text("down", i));
    modules[text("UpT", i, ".out.0")] = text("up", i, "_t");
    add_double_conv(modules, text("UpConv", i), text("up", i, "_conv"));
  }
  modules["OutConv.conv"] = "out";
  return table;
}

NameTable torchvision() {
  NameTable table{"torchvision", "torchvision's", {}};
  Modules& modules = table.modules;
  modules["conv1"] = "input_layer.conv1";
  modules["bn1"] = "input_layer.norm1";
  for (int stage = 1; stage <= 4; ++stage)
    for (int block = 0; block <= 1; ++block) {
      const std::string theirs = text("layer", stage, ".", block);
      const std::string ours = text("basic_block", stage, block + 1);
      for (const char* part : {"1", "2"}) {
        modules[theirs + ".conv" + part] = ours + ".conv" + part;
        modules[theirs + ".bn" + part] = ours + ".norm" + part;
      }
      modules[theirs + ".downsample.0"] = ours + ".add.conv";
      modules[theirs + ".downsample.1"] = ours + ".add.norm";
    }
  modules["fc"] = "output_layer.linear";
  return table;
}

NameTable known_unet() {
  NameTable table{"pytorch_unet", "Pytorch-UNet's", {}};
  Modules& modules = table.modules;
  add_double_conv(modules, "inc", "in");
  for (int i = 1; i <= 4; ++i) {
    add_double_conv(modules, text("down", i, ".maxpool_conv.1"), text("down", i));
    modules[text("up", i, ".up")] = text("up", i, "_t");
    add_double_conv(modules, text("up", i, ".conv"), text("up", i, "_conv"));
  }
  modules["outc.conv"] = "out";
  return table;
}

std::string translated(const NameTable& table, const std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos) return name;
  const auto found = table.modules.find(name.substr(0, dot));
  return found == table.modules.end() ? name : found->second + name.substr(dot);
}

}  // namespace

const std::vector<NameTable>& name_tables() {
  static const std::vector<NameTable> tables = {reference_programs(), torchvision(), known_unet()};
  return tables;
}

std::string without_wrappers(std::string_view name) {
  constexpr std::string_view partitions = "partitions.";
  constexpr std::string_view prefixes[] = {"module.", "_orig_mod.", "model."};
  while (true) {
    const auto* const prefix =
        std::find_if(std::begin(prefixes), std::end(prefixes),
                     [&](std::string_view one) { return name.starts_with(one); });
    if (prefix != std::end(prefixes)) {
      name.remove_prefix(prefix->size());
      continue;
    }
    if (!name.starts_with(partitions)) break;
    const std::size_t dot = name.find_first_not_of("0123456789", partitions.size());
    if (dot == partitions.size() || dot == std::string_view::npos || name[dot] != '.') break;
    name.remove_prefix(dot + 1);
  }
  return std::string(name);
}

Naming names_of(const std::vector<std::string>& in_file, const std::vector<std::string>& wanted) {
  const std::unordered_set<std::string> known(wanted.begin(), wanted.end());
  const auto fitting = [&](const std::vector<std::string>& names) {
    return std::count_if(names.begin(), names.end(),
                         [&](const std::string& name) { return known.contains(name); });
  };
  Naming best{.names = in_file};
  auto most = fitting(in_file);
  const auto consider = [&](const std::string& title, std::vector<std::string> names) {
    const auto count = fitting(names);
    if (count <= most) return;
    most = count;
    best = {title, std::move(names)};
  };
  std::vector<std::string> bare;
  for (const std::string& name : in_file) bare.push_back(without_wrappers(name));
  consider("its own", bare);
  for (const NameTable& table : name_tables()) {
    std::vector<std::string> names;
    for (const std::string& name : bare) names.push_back(translated(table, name));
    consider(table.title, std::move(names));
  }
  return best;
}

std::vector<std::string> names_for(const std::vector<std::string>& ours, const NameTable& table) {
  Modules theirs;
  for (const auto& [their, our] : table.modules) theirs[our] = their;
  std::vector<std::string> names, unknown;
  for (const std::string& name : ours) {
    const std::size_t dot = name.rfind('.');
    const auto found = dot == std::string::npos ? theirs.end() : theirs.find(name.substr(0, dot));
    if (found == theirs.end())
      unknown.push_back("'" + name + "'");
    else
      names.push_back(found->second + name.substr(dot));
  }
  if (unknown.empty()) return names;
  // For another of their models, such as torchvision's ResNet-50 next to ResNet-18, the names are
  // theirs already.
  if (names.empty() && std::ranges::any_of(ours, [&](const std::string& name) {
        return table.modules.contains(name.substr(0, std::min(name.rfind('.'), name.size())));
      }))
    return ours;
  constexpr std::size_t most_shown = 5;
  const std::size_t count = unknown.size();
  unknown.resize(std::min(count, most_shown));
  throw UsageError(text(count, " of these ", ours.size(), " tensors have no name among ",
                        table.title, ": ", join(unknown, ", "), count > most_shown ? ", ..." : ""));
}

}  // namespace trestle::checkpoint
