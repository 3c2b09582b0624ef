#include "trestle/train/usage_check.h"

#include <string_view>

#include "trestle/base/text.h"

namespace trestle::train {
namespace {

constexpr std::string_view usage_error_prefix = "invalid request: ";

}  // namespace

std::string usage_error_message(const UsageError& error) {
  return text(usage_error_prefix, error.what());
}

bool is_usage_error_message(const Error& error) {
  return std::string_view(error.what()).find(usage_error_prefix) != std::string_view::npos;
}

}  // namespace trestle::train
