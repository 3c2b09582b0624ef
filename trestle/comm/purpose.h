#pragma once

#include "trestle/base/error.h"

namespace trestle::comm {

// Returns what `call` returns, which waits for other ranks. If it throws, the error gets a line
// with the purpose of the wait, such as "while the ranks agreed whether to stop". `purpose` is a
// function, so that its text costs nothing otherwise.
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
