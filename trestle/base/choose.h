#pragma once

#include <string>
#include <string_view>
#include <vector>

// Looks up entries of a table by name, and reports unknown names.
namespace trestle {

// "; did you mean 'gpipe'?" for the known name nearest to `name`, or "" if none is near. It is the
// end of a message.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

// Throws UsageError: "unknown schedule 'gpip'; did you mean 'gpipe'?". The hint lists all known
// names.
[[noreturn]] void throw_unknown(std::string_view what, std::string_view name,
                                const std::vector<std::string>& known);

// The entry of `table` whose member `name` equals `name`. Throws UsageError as above if there is
// none. The reference is valid as long as the table.
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
