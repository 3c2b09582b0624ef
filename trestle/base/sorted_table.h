#pragma once

#include <algorithm>
#include <vector>

// Used by the tables that CMake generates (trestle_generate_table). Not installed.
namespace trestle {

// The entries in the order of their member `name`.
template <class Entry>
std::vector<Entry> sorted_by_name(std::vector<Entry> entries) {
  std::ranges::sort(entries, {}, &Entry::name);
  return entries;
}

}  // namespace trestle
