#pragma once

#include <string>

#include "trestle/base/error.h"

// Tells a rank that received another rank's error whether that error was a UsageError, so that all
// ranks exit with the same code. Not installed.
namespace trestle::train {

// The text that a rank sends to the other ranks: "invalid request: ...".
std::string usage_error_message(const UsageError& error);

// Whether `error`, which ended this rank's wait, carries such a text from another rank.
bool is_usage_error_message(const Error& error);

}  // namespace trestle::train
