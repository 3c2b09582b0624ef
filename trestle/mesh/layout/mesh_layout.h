#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Ranks in a grid with named dimensions, as numbers alone. No torch.
namespace trestle::mesh {

struct Dimension {
  std::string name;  // letters, digits and _, not a digit first
  int size = 1;
  bool operator==(const Dimension&) const = default;
};

// The ranks of a grid, row by row: along the last dimension they are neighbours. PyTorch's (2, 4) mesh:
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
// All functions that take a name or a rank throw UsageError where there is none such.
class MeshLayout {
 public:
  // Ranks 0, 1, 2 ... Throws UsageError for a name that is no name or stands twice, for a size below 1 and
  // for more than 1,000,000 ranks.
  explicit MeshLayout(std::vector<Dimension> dimensions);

  const std::vector<Dimension>& dimensions() const { return dimensions_; }
  const std::vector<int>& ranks() const { return ranks_; }  // row by row
  int size() const { return static_cast<int>(ranks_.size()); }
  // Of a dimension, or of a flattened one.
  int size(std::string_view name) const;
  bool has(std::string_view name) const;

  // Of a rank, one for each dimension; and the other way.
  std::vector<int> coordinates(int rank) const;
  int rank(const std::vector<int>& coordinates) const;
  // Its place along one dimension, which may be flattened: its number in group_of().
  int coordinate(int rank, std::string_view name) const;

  // Which ranks differ in these dimensions alone: a list for each place in the others, row by row, and
  // each list row by row too. Names stand in the mesh's order; a flattened one stands for its dimensions.
  std::vector<std::vector<int>> groups(const std::vector<std::string>& names) const;
  // That of these lists which has the rank.
  std::vector<int> group_of(int rank, const std::vector<std::string>& names) const;

  // A new name for several dimensions together, which are given in the mesh's order.
  MeshLayout flattened(const std::vector<std::string>& names, const std::string& name) const;
  // Names made so, with the dimensions that each stands for, in the order in which they were made.
  const std::vector<std::pair<std::string, std::vector<std::string>>>& flattened_names() const {
    return flattened_;
  }

  // All groups there are: for each dimension, then for each flattened one, groups() of it. Every rank that
  // makes them in this order makes them as all others do.
  std::vector<std::pair<std::string, std::vector<std::vector<int>>>> all_groups() const;

  // The part of the mesh that `rank` is in, with these dimensions alone; it keeps the flattened names that
  // stand for dimensions it has.
  MeshLayout slice(int rank, const std::vector<std::string>& names) const;

  // Throws UsageError where it has not `ranks` ranks, with what would fit.
  void check_size(int ranks) const;

  // "replicate=2,shard=4", as parse_mesh() reads it.
  std::string to_text() const;
  // Lines of text: rows are the last dimension but one, columns the last, in blocks for each place in
  // those before.
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

// "replicate=2,shard=4". Throws UsageError.
MeshLayout parse_mesh(std::string_view words);

}  // namespace trestle::mesh
