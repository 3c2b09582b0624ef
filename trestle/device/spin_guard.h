#pragma once

#include <memory>

namespace trestle {

// Lets OpenMP's threads sleep while other programs need the processors.
//
// Between two operators the threads of GNU OpenMP, which libtorch uses, spin for about 3 ms before
// they sleep. That is the fastest on an idle machine. On a busy one a spinning thread takes the
// processor that the thread it waits for needs, and a step with thousands of operators takes tens
// of times as long. While it lives, a thread of this object counts 20 times a second how often the
// system took a processor away from this process. Above 30 times per second and core, the threads
// spin for a microsecond only; below 10 for two seconds, they spin as before. Results do not
// change.
//
// It does nothing with another OpenMP, and where the environment has OMP_WAIT_POLICY or
// GOMP_SPINCOUNT, which decide it then. The verbs of `trestle` that compute have one; a program
// makes one at its start:
//
//   const trestle::SpinGuard guard;
class SpinGuard {
 public:
  SpinGuard();
  ~SpinGuard();
  SpinGuard(const SpinGuard&) = delete;
  SpinGuard& operator=(const SpinGuard&) = delete;

  // Whether the threads spin only for a microsecond now.
  bool is_active() const;

 private:
  class Watch;
  std::unique_ptr<Watch> watch_;  // null: nothing to guard
};

}  // namespace trestle
