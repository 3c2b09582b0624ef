#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>

namespace trestle {

// Makes this thread's random operators on CPU tensors ask for a generator, while it lives.
c10::impl::IncludeDispatchKeyGuard ask_for_generators();

// One operator draws: from the thread's tapes (random_tape.h) where there are any, else from `source`.
// While it lives, other operators that this one is made of draw from the same generator.
class RandomDraw {
 public:
  // `is_shared`: other threads may draw from `source` too, a default generator.
  enum class Source { OfThread, Shared };
  RandomDraw(const at::Generator& source, Source kind);
  ~RandomDraw();
  RandomDraw(const RandomDraw&) = delete;
  RandomDraw& operator=(const RandomDraw&) = delete;

  const at::Generator& generator() const;

  // Is a tape recorded or replayed in this thread?
  static bool is_taped();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trestle
