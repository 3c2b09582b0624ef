#pragma once

#include <exception>
#include <string>

#include "trestle/base/error.h"

namespace trestle::support {

// The message of the Exception that `action` throws. Another one goes through, and fails the test.
template <class Exception = Error, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const Exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace trestle::support
