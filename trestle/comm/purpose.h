#pragma once

#include "trestle/base/error.h"

namespace trestle::comm {

// Returns what `call` returns, which waits for other ranks. If it throws, the error gets a line with
// the purpose of the wait: `purpose` is a function, so that its text costs nothing otherwise.
//
//   comm::with_purpose([&] { return "while the ranks agreed to stop"; }, [&] { work.wait(); });
template <class Purpose, class Call>
auto with_purpose(const Purpose& purpose, const Call& call) {
  try {
    return call();
  } catch (Error& error) {
    error.add_context(purpose());
    throw;
  }
}

}  // namespace trestle::comm
