#include "trestle/base/choose.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle {

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  const std::string guess = nearest(name, known);
  return guess.empty() ? "" : "; did you mean '" + guess + "'?";
}

void throw_unknown(std::string_view what, std::string_view name,
                   const std::vector<std::string>& known) {
  throw UsageError(text("unknown ", what, " '", name, "'", did_you_mean(name, known)),
                   {.hint = "Known: " + join(known, ", ") + "."});
}

}  // namespace trestle
