#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Ranks in a grid with named dimensions. No torch.
namespace trestle::mesh {

struct Dimension {
  std::string name;  // letters, digits and '_', not beginning with a digit
  int size = 1;
  bool operator==(const Dimension&) const = default;
};

// The ranks of a grid in row-major order: neighbours along the last dimension have consecutive
// numbers. PyTorch's (2, 4) mesh:
//
//   const trestle::mesh::MeshLayout mesh({{"replicate", 2}, {"shard", 4}});
//   mesh.coordinates(6);      // {1, 2}
//   mesh.groups({"shard"});   // {{0, 1, 2, 3}, {4, 5, 6, 7}}
//   std::cout << mesh.picture();
//
//                   shard
//                   0 1 2 3
//     replicate 0   0 1 2 3
//               1   4 5 6 7
//
// All functions that take a name or a rank throw UsageError for an unknown one.
class MeshLayout {
 public:
  // Ranks 0, 1, 2 ... Throws UsageError for an invalid or repeated name, for a size below 1 and for
  // more than 1,000,000 ranks.
  explicit MeshLayout(std::vector<Dimension> dimensions);

  const std::vector<Dimension>& dimensions() const { return dimensions_; }
  const std::vector<int>& ranks() const { return ranks_; }  // row-major
  int size() const { return static_cast<int>(ranks_.size()); }
  // The size of a dimension, or of a flattened one.
  int size(std::string_view name) const;
  bool has(std::string_view name) const;

  // Converts between a rank and its coordinates, one for each dimension.
  std::vector<int> coordinates(int rank) const;
  int rank(const std::vector<int>& coordinates) const;
  // A rank's coordinate along one dimension, which may be flattened: its index in group_of().
  int coordinate(int rank, std::string_view name) const;

  // Groups of ranks that differ only in these dimensions: one group for each combination of
  // coordinates in the other dimensions. Both the groups and the ranks in them are in row-major
  // order. The names must be in the mesh's order; a flattened name stands for its dimensions.
  std::vector<std::vector<int>> groups(const std::vector<std::string>& names) const;
  // The group that contains `rank`.
  std::vector<int> group_of(int rank, const std::vector<std::string>& names) const;

  // Adds a name for several dimensions together, which are given in the mesh's order.
  MeshLayout flattened(const std::vector<std::string>& names, const std::string& name) const;
  // The flattened names with their dimensions, in the order in which they were added.
  const std::vector<std::pair<std::string, std::vector<std::string>>>& flattened_names() const {
    return flattened_;
  }

  // groups() of each dimension, then of each flattened one. Ranks that make all groups in this
  // order make them in the same order.
  std::vector<std::pair<std::string, std::vector<std::vector<int>>>> all_groups() const;

  // The submesh of `rank` with only these dimensions. It keeps the flattened names whose dimensions
  // it has.
  MeshLayout slice(int rank, const std::vector<std::string>& names) const;

  // Throws UsageError, with sizes that would fit, unless the mesh has `ranks` ranks.
  void check_size(int ranks) const;

  // "replicate=2,shard=4", as parse_mesh() reads it.
  std::string to_text() const;
  // The ranks as text. Columns are the last dimension, rows the one before; each combination of the
  // other dimensions is a block.
  std::string picture() const;

  bool operator==(const MeshLayout&) const = default;

 private:
  std::size_t index_of(std::string_view name) const;
  std::vector<std::size_t> indices_of(const std::vector<std::string>& names) const;
  std::vector<std::string> known_names() const;

  std::vector<Dimension> dimensions_;
  std::vector<int> ranks_;
  std::vector<std::pair<std::string, std::vector<std::string>>> flattened_;
};

// Parses "replicate=2,shard=4". Throws UsageError.
MeshLayout parse_mesh(std::string_view words);

}  // namespace trestle::mesh
