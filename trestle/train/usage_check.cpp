#include "trestle/train/usage_check.h"

#include <chrono>
#include <string_view>
#include <thread>

#include "trestle/base/text.h"
#include "trestle/comm/fail_on_error.h"
#include "trestle/comm/world.h"

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

void fail_ranks(const World& world, const std::exception_ptr& error) {
  if (world.failure()) return;
  try {
    std::rethrow_exception(error);
  } catch (const UsageError& caught) {
    constexpr std::chrono::milliseconds for_the_first{100};
    if (world.rank() != 0) std::this_thread::sleep_for(for_the_first);
    world.fail(usage_error_message(caught));
  } catch (...) {
    world.fail(comm::error_message(error));
  }
}

}  // namespace trestle::train
