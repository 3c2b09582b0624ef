#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trestle/comm/world.h"
#include "trestle/mesh/layout/mesh_layout.h"

namespace trestle {

// All ranks of a world in a grid with named dimensions (mesh/layout/mesh_layout.h), and for each dimension the
// group of ranks along it that this rank is in. PyTorch's (2, 4) mesh for hybrid sharding, rows replicate
// and columns shard:
//
//   trestle::DeviceMesh mesh(world, {{"replicate", 2}, {"shard", 4}});
//   mesh.group("shard").all_reduce(gradient).wait();       // over the four ranks of this row
//   mesh.group("replicate").all_reduce(gradient).wait();   // over the two of this column
//   std::cout << mesh.layout().picture();
//
// A copy has the same groups. Functions that take a name throw UsageError where there is none such.
class DeviceMesh {
 public:
  // All ranks of the world make the same meshes in the same order. Throws UsageError for dimensions that
  // cannot be or do not have the world's ranks together, and on all ranks where they differ, naming two.
  DeviceMesh(const World& world, std::vector<mesh::Dimension> dimensions);

  const World& world() const { return world_; }
  const mesh::MeshLayout& layout() const { return layout_; }
  int size() const { return layout_.size(); }
  int size(std::string_view name) const { return layout_.size(name); }

  // This rank's place along a dimension: its number in group(name).
  int coordinate(std::string_view name) const { return layout_.coordinate(world_.rank(), name); }
  // The ranks that differ from this one along it alone.
  const comm::Group& group(std::string_view name) const;

  // The mesh with one more name, for several dimensions together. All ranks of the world call it, also those
  // whose slice is another one.
  //
  //   const auto flat = mesh.flatten({"replicate", "shard"}, "data");
  //   flat.group("data").barrier();
  DeviceMesh flatten(const std::vector<std::string>& names, const std::string& name) const;

  // This rank's group of `count` neighbours along a dimension, where each `count` of them are one. All ranks of the world
  // call it, as for flatten(). UsageError where they do not divide the dimension.
  comm::Group neighbours(std::string_view name, int count) const;

  // The part of the mesh with these dimensions alone, given in the mesh's order, that this rank is in. It makes
  // no new groups, so any rank may call it at any time.
  DeviceMesh slice(const std::vector<std::string>& names) const;

 private:
  void make_groups(const std::string& name);

  World world_;
  mesh::MeshLayout whole_;  // what it is a slice of, or itself
  mesh::MeshLayout layout_;
  std::vector<std::pair<std::string, comm::Group>> groups_;
};

}  // namespace trestle
