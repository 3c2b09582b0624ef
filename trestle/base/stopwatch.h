#pragma once

#include <chrono>

namespace trestle {

// Measures the seconds since its construction.
//
//   const Stopwatch watch;
//   const double elapsed = watch.seconds();
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace trestle
