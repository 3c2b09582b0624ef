#pragma once

// toml++ as trestle includes it, in sources only. The library of such a source needs toml++'s
// include folder: see recipe/CMakeLists.txt. Not installed.

#include <stdexcept>
#include <string>

#include "trestle/base/text.h"

// Some malformed keys violate toml++'s own assertions, which end the process unless NDEBUG is set.
// A file must never do that.
namespace trestle {
[[noreturn]] inline void not_toml() { throw std::invalid_argument("this is not TOML"); }
}  // namespace trestle
#undef NDEBUG  // with NDEBUG toml++ would not check them at all
#define TOML_ASSERT(condition) ((condition) ? static_cast<void>(0) : trestle::not_toml())
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

namespace trestle {

// "my.toml:14", for messages.
inline std::string toml_place(const std::string& file, const toml::source_region& source) {
  return source.begin.line == 0 ? file : text(file, ":", source.begin.line);
}

}  // namespace trestle
