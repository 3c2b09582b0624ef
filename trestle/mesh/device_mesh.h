#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trestle/comm/world.h"
#include "trestle/mesh/layout/mesh_layout.h"

namespace trestle {

// All ranks of a world in a grid with named dimensions (mesh/layout/mesh_layout.h), and for each
// dimension this rank's group of ranks along it. PyTorch's (2, 4) mesh for hybrid sharding, where
// rows replicate and columns shard:
//
//   trestle::DeviceMesh mesh(world, {{"replicate", 2}, {"shard", 4}});
//   mesh.group("shard").all_reduce(gradient).wait();       // over the four ranks of this row
//   mesh.group("replicate").all_reduce(gradient).wait();   // over the two ranks of this column
//   std::cout << mesh.layout().picture();
//
// Copies share the groups. Functions that take a name throw UsageError for an unknown one.
class DeviceMesh {
 public:
  // All ranks of the world make the same meshes in the same order. Throws UsageError for invalid
  // dimensions, for sizes whose product is not the world size, and on all ranks if their meshes
  // differ.
  DeviceMesh(const World& world, std::vector<mesh::Dimension> dimensions);

  const World& world() const { return world_; }
  const mesh::MeshLayout& layout() const { return layout_; }
  int size() const { return layout_.size(); }
  int size(std::string_view name) const { return layout_.size(name); }

  // This rank's coordinate along a dimension: its rank in group(name).
  int coordinate(std::string_view name) const { return layout_.coordinate(world_.rank(), name); }
  // The ranks that differ from this one only in this dimension.
  const comm::Group& group(std::string_view name) const;

  // The mesh with an additional name for several dimensions together. All ranks of the world call
  // it, also those with another slice.
  //
  //   const auto flat = mesh.flatten({"replicate", "shard"}, "data");
  //   flat.group("data").barrier();
  DeviceMesh flatten(const std::vector<std::string>& names, const std::string& name) const;

  // Splits a dimension into groups of `count` neighbours and returns this rank's. All ranks of the
  // world call it, as flatten(). Throws UsageError unless `count` divides the dimension's size.
  comm::Group neighbours(std::string_view name, int count) const;

  // This rank's submesh with only these dimensions, given in the mesh's order. It makes no new
  // groups, so any rank may call it at any time.
  DeviceMesh slice(const std::vector<std::string>& names) const;

 private:
  void make_groups(const std::string& name);

  World world_;
  mesh::MeshLayout
      whole_;  // the mesh that layout_ is a slice of; equal to layout_ if it is not one
  mesh::MeshLayout layout_;
  std::vector<std::pair<std::string, comm::Group>> groups_;
};

}  // namespace trestle
