#include "trestle/plan/search/memory_limit.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"

namespace trestle::plan {

double parse_memory_limit(const std::string& size, const std::string& flag) {
  const Bytes bytes = parse_bytes(size);
  if (bytes < 1)
    throw UsageError(text(flag, " ", size, ": a device needs at least one byte"),
                     {.hint = "Give what a device may use, such as 24GiB, or leave it out."});
  return static_cast<double>(bytes);
}

}  // namespace trestle::plan
