#include "trestle/mesh/layout/mesh_layout.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <numeric>
#include <optional>
#include <set>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::mesh {

namespace {

constexpr int most_ranks = 1'000'000;

void check_name(const std::string& name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const auto is_either = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); };
  if (name.empty() || !is_letter(name[0]) || !std::all_of(name.begin(), name.end(), is_either))
    throw UsageError(
        text("'", name.substr(0, 100), "' is not a valid name for a mesh dimension"),
        {.hint = "A name has letters, digits and '_', and does not begin with a digit."});
}

std::string in_words(const std::vector<Dimension>& dimensions) {
  std::vector<std::string> parts;
  for (const Dimension& dimension : dimensions)
    parts.push_back(text(dimension.name, "=", dimension.size));
  return join(parts, ",");
}

}  // namespace

MeshLayout::MeshLayout(std::vector<Dimension> dimensions) : dimensions_(std::move(dimensions)) {
  if (dimensions_.empty()) throw UsageError("a mesh has at least one dimension");
  std::set<std::string> names;
  std::int64_t size = 1;
  for (const Dimension& dimension : dimensions_) {
    check_name(dimension.name);
    if (!names.insert(dimension.name).second)
      throw UsageError(text("the mesh has the dimension '", dimension.name, "' twice"));
    if (dimension.size < 1)
      throw UsageError(text("dimension '", dimension.name, "' of the mesh has size ",
                            dimension.size, "; the smallest is 1"));
    size *= dimension.size;
    if (size > most_ranks)
      throw UsageError(
          text("the mesh ", in_words(dimensions_), " has more than ", most_ranks, " ranks"));
  }
  ranks_.resize(static_cast<std::size_t>(size));
  std::iota(ranks_.begin(), ranks_.end(), 0);
}

std::vector<std::string> MeshLayout::known_names() const {
  std::vector<std::string> names;
  for (const Dimension& dimension : dimensions_) names.push_back(dimension.name);
  for (const auto& [name, parts] : flattened_) names.push_back(name);
  return names;
}

std::size_t MeshLayout::index_of(std::string_view name) const {
  for (std::size_t i = 0; i < dimensions_.size(); ++i)
    if (dimensions_[i].name == name) return i;
  throw_unknown("dimension of the mesh", name, known_names());
}

// The indices of the dimensions that the names stand for, ascending.
std::vector<std::size_t> MeshLayout::indices_of(const std::vector<std::string>& names) const {
  if (names.empty()) throw UsageError("at least one mesh dimension must be named");
  std::vector<std::size_t> indices;
  for (const std::string& name : names) {
    const auto alias = std::find_if(flattened_.begin(), flattened_.end(),
                                    [&](const auto& known) { return known.first == name; });
    if (alias == flattened_.end())
      indices.push_back(index_of(name));
    else
      for (const std::string& part : alias->second) indices.push_back(index_of(part));
  }
  for (std::size_t i = 1; i < indices.size(); ++i) {
    if (indices[i - 1] < indices[i]) continue;
    const bool twice = std::count(indices.begin(), indices.end(), indices[i]) > 1;
    throw UsageError(text("dimensions '", join(names, "', '"), "' of the mesh ",
                          in_words(dimensions_),
                          twice ? ": one is listed twice" : ": not in the mesh's order"));
  }
  return indices;
}

bool MeshLayout::has(std::string_view name) const {
  const auto known = known_names();
  return std::find(known.begin(), known.end(), name) != known.end();
}

int MeshLayout::size(std::string_view name) const {
  int size = 1;
  for (const std::size_t i : indices_of({std::string(name)})) size *= dimensions_[i].size;
  return size;
}

std::vector<int> MeshLayout::coordinates(int rank) const {
  const auto found = std::find(ranks_.begin(), ranks_.end(), rank);
  if (found == ranks_.end())
    throw UsageError(text("rank ", rank, " is not in the mesh ", in_words(dimensions_)));
  auto rest = static_cast<int>(found - ranks_.begin());
  std::vector<int> coordinates(dimensions_.size());
  for (std::size_t i = dimensions_.size(); i-- > 0; rest /= dimensions_[i].size)
    coordinates[i] = rest % dimensions_[i].size;
  return coordinates;
}

int MeshLayout::rank(const std::vector<int>& coordinates) const {
  if (coordinates.size() != dimensions_.size())
    throw UsageError(text(coordinates.size(), " coordinates for the mesh ", in_words(dimensions_)));
  std::size_t at = 0;
  for (std::size_t i = 0; i < coordinates.size(); ++i) {
    const Dimension& dimension = dimensions_[i];
    if (coordinates[i] < 0 || coordinates[i] >= dimension.size)
      throw UsageError(text("coordinate ", coordinates[i], " along '", dimension.name,
                            "' is not from 0 to ", dimension.size - 1));
    at = at * static_cast<std::size_t>(dimension.size) + static_cast<std::size_t>(coordinates[i]);
  }
  return ranks_[at];
}

int MeshLayout::coordinate(int rank, std::string_view name) const {
  const std::vector<int> own = coordinates(rank);
  int place = 0;
  for (const std::size_t i : indices_of({std::string(name)}))
    place = place * dimensions_[i].size + own[i];
  return place;
}

std::vector<std::vector<int>> MeshLayout::groups(const std::vector<std::string>& names) const {
  const std::vector<std::size_t> inside = indices_of(names);
  std::size_t count = ranks_.size();
  for (const std::size_t i : inside) count /= static_cast<std::size_t>(dimensions_[i].size);
  std::vector<std::vector<int>> groups(count);
  // The ranks are in row-major order, so each group's ranks are too.
  for (std::size_t at = 0; at < ranks_.size(); ++at) {
    std::size_t rest = at, group = 0, stride = 1;
    for (std::size_t i = dimensions_.size(); i-- > 0;) {
      const auto size = static_cast<std::size_t>(dimensions_[i].size);
      if (!std::binary_search(inside.begin(), inside.end(), i)) {
        group += rest % size * stride;
        stride *= size;
      }
      rest /= size;
    }
    groups[group].push_back(ranks_[at]);
  }
  return groups;
}

std::vector<int> MeshLayout::group_of(int rank, const std::vector<std::string>& names) const {
  coordinates(rank);  // throws for an unknown rank
  for (std::vector<int>& group : groups(names))
    if (std::find(group.begin(), group.end(), rank) != group.end()) return std::move(group);
  return {};
}

MeshLayout MeshLayout::flattened(const std::vector<std::string>& names,
                                 const std::string& name) const {
  check_name(name);
  if (has(name))
    throw UsageError(
        text("the mesh ", in_words(dimensions_), " already has a dimension '", name, "'"));
  std::vector<std::string> parts;
  for (const std::size_t i : indices_of(names)) parts.push_back(dimensions_[i].name);
  MeshLayout result = *this;
  result.flattened_.emplace_back(name, std::move(parts));
  return result;
}

std::vector<std::pair<std::string, std::vector<std::vector<int>>>> MeshLayout::all_groups() const {
  std::vector<std::pair<std::string, std::vector<std::vector<int>>>> all;
  for (const std::string& name : known_names()) all.emplace_back(name, groups({name}));
  return all;
}

MeshLayout MeshLayout::slice(int rank, const std::vector<std::string>& names) const {
  std::vector<Dimension> kept;
  for (const std::size_t i : indices_of(names)) kept.push_back(dimensions_[i]);
  MeshLayout result(std::move(kept));
  result.ranks_ = group_of(rank, names);
  for (const auto& [name, parts] : flattened_)
    if (std::all_of(parts.begin(), parts.end(),
                    [&](const std::string& part) { return result.has(part); }))
      result.flattened_.emplace_back(name, parts);
  return result;
}

void MeshLayout::check_size(int ranks) const {
  if (size() == ranks) return;
  std::vector<int> sizes;
  std::vector<std::string> fitting;
  for (const Dimension& dimension : dimensions_) {
    sizes.push_back(dimension.size);
    const int others = size() / dimension.size;
    if (ranks >= others && ranks % others == 0)
      fitting.push_back(text(dimension.name, "=", ranks / others));
  }
  throw UsageError(
      text("the mesh ", in_words(dimensions_), " has ",
           sizes.size() > 1 ? join(sizes, " x ") + " = " : "", size(), " ranks, but there are ",
           ranks),
      {.hint = fitting.empty() ? text("Start ", size(), " ranks, or change its sizes.")
                               : text("With ", join(fitting, " or "), " it has ", ranks, ".")});
}

std::string MeshLayout::to_text() const { return in_words(dimensions_); }

MeshLayout parse_mesh(std::string_view words) {
  std::vector<Dimension> dimensions;
  for (const std::string& part : split(words, ',')) {
    const auto equals = part.find('=');
    const std::string number = equals == std::string::npos ? "" : trim(part.substr(equals + 1));
    Dimension dimension{.name = trim(part.substr(0, equals))};
    const char* const end = number.data() + number.size();
    const auto [behind, error] = std::from_chars(number.data(), end, dimension.size);
    if (error != std::errc() || behind != end)
      throw UsageError(text("'", part.substr(0, 100), "' is not a mesh dimension and its size"),
                       {.hint = "For example: replicate=2,shard=4"});
    dimensions.push_back(std::move(dimension));
  }
  return MeshLayout(std::move(dimensions));
}

}  // namespace trestle::mesh
