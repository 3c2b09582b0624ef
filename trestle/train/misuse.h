#pragma once

#include <string>

#include "trestle/base/error.h"

// Ranks that were asked for what cannot be (UsageError) end as one that was, all of them: those that
// only hear of it, too. Not installed.
namespace trestle::train {

// What the others are told: "it was asked for what cannot be: ...".
std::string tell_misuse(const UsageError& error);

// Whether another rank's words, with which this one's waits ended, are such.
bool is_misuse(const Error& error);

}  // namespace trestle::train
