#include "trestle/base/counted.h"

#include "trestle/base/units.h"

namespace trestle {

std::string plural(std::int64_t count, std::string_view one, std::string_view many) {
  if (count == 1) return std::string(one);
  return many.empty() ? std::string(one) + "s" : std::string(many);
}

std::string counted(std::int64_t count, std::string_view one, std::string_view many) {
  return format_count(count) + " " + plural(count, one, many);
}

}  // namespace trestle
