#include "trestle/train/misuse.h"

#include <string_view>

#include "trestle/base/text.h"

namespace trestle::train {
namespace {

constexpr std::string_view words = "it was asked for what cannot be: ";

}  // namespace

std::string tell_misuse(const UsageError& error) { return text(words, error.what()); }

bool is_misuse(const Error& error) {
  return std::string_view(error.what()).find(words) != std::string_view::npos;
}

}  // namespace trestle::train
