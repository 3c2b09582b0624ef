#pragma once

#include "trestle/base/error.h"

namespace trestle {

// Another rank failed, exited, or called a different operation. what() names the rank and its
// reason. If several ranks fail, every rank's message has the reason of the first.
class RankError : public Error {
 public:
  using Error::Error;
};

}  // namespace trestle
