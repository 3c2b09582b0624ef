#pragma once

#include <chrono>

namespace gloo {

// libtorch creates the objects; an inline function of ProcessGroupGloo.hpp calls this one member.
class Context {
 public:
  Context() = delete;
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
