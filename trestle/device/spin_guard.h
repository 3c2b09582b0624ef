#pragma once

#include <memory>

namespace trestle {

// Lets OpenMP's threads sleep while other programs need the processors.
//
// Between two operators the threads of GNU OpenMP, which libtorch uses, spin for about 3 ms before
// they sleep. That is the fastest on an idle machine. On a busy one a spinning thread takes the
// processor that the thread it waits for needs, and a step with thousands of operators takes many
// times as long. While it lives, a thread of this object reads five times a second how long the
// threads of this process have waited for a processor. Above 0.15 s per second and core, twice in
// succession, the threads spin for a microsecond only; below 0.05 s for two seconds, they spin as
// before. Results do not change.
//
// It does nothing with another OpenMP, on a system that does not count those times
// (/proc/self/schedstat), and where the environment has OMP_WAIT_POLICY or GOMP_SPINCOUNT, which
// decide it then. The verbs of `trestle` that compute have one; a program makes one at its start:
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
