#pragma once

#include <string>
#include <string_view>
#include <vector>

// Picking something by its name, and what to say where there is no such name.
namespace trestle {

// "; did you mean 'gpipe'?" for the known name that is nearest to `name`, or "" where none is near:
// the end of a message.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

// Throws UsageError: "unknown schedule 'gpip'; did you mean 'gpipe'?", with all known names as hint.
[[noreturn]] void throw_unknown(std::string_view what, std::string_view name,
                                const std::vector<std::string>& known);

// The entry of `table` whose member `name` is `name`; throws UsageError as above where there is
// none. The entry lives as long as the table.
//
//   struct Size { std::string_view name; int width; };
//   const std::vector<Size> sizes = {{"small", 16}, {"large", 64}};
//   const int width = choose("size", "large", sizes).width;
template <class Table>
const typename Table::value_type& choose(std::string_view what, std::string_view name,
                                         const Table& table) {
  std::vector<std::string> known;
  for (const auto& entry : table) {
    if (entry.name == name) return entry;
    known.emplace_back(entry.name);
  }
  throw_unknown(what, name, known);
}

}  // namespace trestle
