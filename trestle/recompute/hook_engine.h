#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace trestle::recompute {

// Who keeps the tensors that autograd saves.
class TensorKeeper {
 public:
  virtual ~TensorKeeper() = default;
  // For the next tensor that is saved.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;
  // A backward begins in the thread while this is its keeper.
  virtual void note_backward() = 0;
};

// While it lives, `keeper` keeps what the calling thread's operators save; the innermost scope counts.
// Needs install().
class KeeperScope {
 public:
  explicit KeeperScope(TensorKeeper& keeper);
  ~KeeperScope();
  KeeperScope(const KeeperScope&) = delete;
  KeeperScope& operator=(const KeeperScope&) = delete;
};

}  // namespace trestle::recompute
