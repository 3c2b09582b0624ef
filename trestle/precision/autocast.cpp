#include "trestle/precision/autocast.h"

#include <array>

#include "trestle/base/choose.h"

namespace trestle::precision {

namespace {

struct Name {
  std::string_view name;
  Precision precision;
};
constexpr std::array names = {Name{"fp32", Precision::Float32}, Name{"bf16", Precision::BFloat16},
                              Name{"fp16", Precision::Float16}};

}  // namespace

Precision parse_precision(std::string_view name) {
  return choose("precision", name, names).precision;
}

std::vector<std::string> precision_names() {
  std::vector<std::string> result;
  for (const Name& known : names) result.emplace_back(known.name);
  return result;
}

Autocast::Autocast(Precision precision) {
  if (precision == Precision::Float32) return;
  nn::AutocastState state = nn::AutocastState::current();
  state.enabled.fill(true);
  state.dtype.fill(precision == Precision::BFloat16 ? at::kBFloat16 : at::kHalf);
  scope_.emplace(state);
}

}  // namespace trestle::precision
