#include "trestle/mesh/device_mesh.h"

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle {

namespace {

// Groups that are not made in the same order everywhere would talk past each other.
void check_same_everywhere(const World& world, const std::string& what) {
  const std::vector<std::string> all = world.group().all_gather_bytes(what);
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](const std::string& words) { return words != all[0]; });
  if (other == all.end()) return;
  throw UsageError(text("ranks make different meshes: rank 0 ", all[0], ", rank ",
                        other - all.begin(), " ", *other),
                   {.hint = "All ranks make the same ones in the same order."});
}

mesh::MeshLayout of_size(std::vector<mesh::Dimension> dimensions, int ranks) {
  mesh::MeshLayout layout(std::move(dimensions));
  layout.check_size(ranks);
  return layout;
}

}  // namespace

DeviceMesh::DeviceMesh(const World& world, std::vector<mesh::Dimension> dimensions)
    : world_(world), whole_(of_size(std::move(dimensions), world.size())), layout_(whole_) {
  check_same_everywhere(world_, layout_.to_text());
  for (const mesh::Dimension& dimension : layout_.dimensions()) make_groups(dimension.name);
}

void DeviceMesh::make_groups(const std::string& name) {
  for (const std::vector<int>& ranks : whole_.groups({name})) {
    comm::Group group = world_.make_group(ranks);
    if (group.valid()) groups_.emplace_back(name, std::move(group));
  }
}

const comm::Group& DeviceMesh::group(std::string_view name) const {
  layout_.size(name);  // refuses one that is not there
  return std::find_if(groups_.begin(), groups_.end(),
                      [&](const auto& known) { return known.first == name; })
      ->second;
}

DeviceMesh DeviceMesh::flatten(const std::vector<std::string>& names,
                               const std::string& name) const {
  DeviceMesh result = *this;
  result.layout_ = layout_.flattened(names, name);
  result.whole_ = whole_.flattened(names, name);
  check_same_everywhere(
      world_, text(whole_.to_text(), " with ", join(names, " and "), " flattened as ", name));
  result.make_groups(name);
  return result;
}

comm::Group DeviceMesh::neighbours(std::string_view name, int count) const {
  const int size = layout_.size(name);
  if (count < 1 || size % count != 0)
    throw UsageError(text("groups of ", count, " along '", name, "', which has ", size, " ranks"),
                     {.hint = "A number that divides them."});
  check_same_everywhere(world_, text(whole_.to_text(), " with groups of ", count, " along ", name));
  comm::Group own;
  for (const std::vector<int>& ranks : whole_.groups({std::string(name)})) {
    for (auto first = ranks.begin(); first != ranks.end(); first += count) {
      comm::Group group = world_.make_group({first, first + count});
      if (group.valid()) own = std::move(group);
    }
  }
  return own;
}

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& names) const {
  DeviceMesh result = *this;
  result.layout_ = layout_.slice(world_.rank(), names);
  std::erase_if(result.groups_,
                [&](const auto& group) { return !result.layout_.has(group.first); });
  return result;
}

}  // namespace trestle
