#pragma once

#include <exception>
#include <string>

#include "trestle/base/error.h"

namespace trestle {
class World;
}

// Tells a rank that received another rank's error whether that error was a UsageError, so that all
// ranks exit with the same code. Not installed.
namespace trestle::train {

// The text that a rank sends to the other ranks: "invalid request: ...".
std::string usage_error_message(const UsageError& error);

// Whether `error`, which ended this rank's wait, carries such a text from another rank.
bool is_usage_error_message(const Error& error);

// Fails the world with this rank's error, unless it has failed already: World::failed_rank() is
// then the one rank that prints it. A UsageError is mostly the same on all ranks, so rank 0 gets
// the time to be the first.
void fail_ranks(const World& world, const std::exception_ptr& error);

}  // namespace trestle::train
