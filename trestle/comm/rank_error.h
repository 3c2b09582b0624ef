#pragma once

#include "trestle/base/error.h"

namespace trestle {

// Another rank failed, went away, or did something else than this one; what() says which, and what
// it said. Where several ranks fail, the first one's reason is in everybody's message.
class RankError : public Error {
 public:
  using Error::Error;
};

}  // namespace trestle
