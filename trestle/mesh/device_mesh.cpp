#include "trestle/mesh/device_mesh.h"

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"

namespace trestle {

namespace {

// Ranks that make groups in a different order would exchange each other's messages.
void check_same_mesh(const World& world, const std::string& mesh) {
  const auto differs = comm::find_difference(world.group(), mesh);
  if (!differs) return;
  throw UsageError(text("ranks make different meshes: rank 0 ", differs->first, ", rank ",
                        differs->rank, " ", differs->other),
                   {.hint = "All ranks must make the same meshes in the same order."});
}

mesh::MeshLayout layout_of_size(std::vector<mesh::Dimension> dimensions, int ranks) {
  mesh::MeshLayout layout(std::move(dimensions));
  layout.check_size(ranks);
  return layout;
}

}  // namespace

DeviceMesh::DeviceMesh(const World& world, std::vector<mesh::Dimension> dimensions)
    : world_(world), whole_(layout_of_size(std::move(dimensions), world.size())), layout_(whole_) {
  check_same_mesh(world_, layout_.to_text());
  for (const mesh::Dimension& dimension : layout_.dimensions()) make_groups(dimension.name);
}

void DeviceMesh::make_groups(const std::string& name) {
  for (const std::vector<int>& ranks : whole_.groups({name})) {
    comm::Group group = world_.make_group(ranks);
    if (group.valid()) groups_.emplace_back(name, std::move(group));
  }
}

const comm::Group& DeviceMesh::group(std::string_view name) const {
  layout_.size(name);  // throws for an unknown name
  return std::find_if(groups_.begin(), groups_.end(),
                      [&](const auto& known) { return known.first == name; })
      ->second;
}

DeviceMesh DeviceMesh::flatten(const std::vector<std::string>& names,
                               const std::string& name) const {
  DeviceMesh result = *this;
  result.layout_ = layout_.flattened(names, name);
  result.whole_ = whole_.flattened(names, name);
  check_same_mesh(world_,
                  text(whole_.to_text(), " with ", join(names, " and "), " flattened as ", name));
  result.make_groups(name);
  return result;
}

comm::Group DeviceMesh::neighbours(std::string_view name, int count) const {
  const int size = layout_.size(name);
  if (count < 1 || size % count != 0)
    throw UsageError(
        text("cannot split dimension '", name, "' of ", size, " ranks into groups of ", count),
        {.hint = "The size of the groups must divide the number of ranks."});
  check_same_mesh(world_, text(whole_.to_text(), " with groups of ", count, " along ", name));
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
