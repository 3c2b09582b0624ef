#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>

namespace trestle {

// While the returned guard lives, random operators of this thread on CPU tensors get their
// generator from this library.
c10::impl::IncludeDispatchKeyGuard intercept_random_operators();

// One draw of an operator: from the thread's tapes (random_tape.h) if there are any, else from
// `source`. While it lives, operators that this one calls draw from the same generator.
class RandomDraw {
 public:
  // Shared: other threads may draw from `source` too, as from a default generator.
  enum class Source { OfThread, Shared };
  RandomDraw(const at::Generator& source, Source kind);
  ~RandomDraw();
  RandomDraw(const RandomDraw&) = delete;
  RandomDraw& operator=(const RandomDraw&) = delete;

  const at::Generator& generator() const;

  // Whether this thread records or replays a tape.
  static bool is_taped();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trestle
