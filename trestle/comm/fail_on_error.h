#pragma once

#include <exception>
#include <string>

// An error of one rank ends the call on all ranks.
namespace trestle::comm {

// The message of an exception, without libtorch's backtrace.
std::string error_message(const std::exception_ptr& error);

// Returns what `call` returns. If it throws, `ranks` (a World or a Group) fails with the message,
// so that no other rank waits for this one, and the exception continues unchanged.
template <class Ranks, class Call>
auto fail_on_error(const Ranks& ranks, const Call& call) {
  try {
    return call();
  } catch (...) {
    ranks.fail(error_message(std::current_exception()));
    throw;
  }
}

}  // namespace trestle::comm
