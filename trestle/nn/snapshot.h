#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trestle/nn/autocast_scope.h"
#include "trestle/nn/buffer_keeper.h"
#include "trestle/nn/graph.h"
#include "trestle/nn/run_key.h"

namespace torch::nn {
class Module;
}

// What "run F again" needs to know, for pipeline recomputation and activation checkpointing alike.
namespace trestle::nn {

// The parts of some layers that a run depends on: looked up once, used at every run.
struct ModuleState {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;     // with children, parents first
  std::vector<std::pair<std::string, at::Tensor>> parameters;  // each once, by its full name
  std::vector<at::Tensor> buffers;                             // each once

  // Of layers [first, last) of `graph`.
  static ModuleState of(const Graph& graph, int first, int last);

  std::vector<bool> training_flags() const;
  std::vector<bool> trained_flags() const;  // requires_grad of each parameter
};

// Copies of buffers, one for each value they had: while a buffer keeps its value, all snapshots
// share one copy of it.
class BufferCopies {
 public:
  const std::vector<at::Tensor>& take(const std::vector<at::Tensor>& buffers);

 private:
  std::vector<at::Tensor> latest_;
};

// How the world looked when F ran: random key, autocast, the modules' train/eval flags, which
// parameters are trained, the buffers as F found them (by value: batch norm changes its statistics
// without a new version), and the parameters' versions.
//
//   Snapshot snapshot(state, copies, key);   // then F
//   {
//     const Snapshot::Again again(snapshot, state);
//     BufferKeeper buffers(state.buffers);            // to the end of the backward
//     buffers.put_in(snapshot.buffers());             // then F again, under snapshot.key()
//   }
class Snapshot {
 public:
  Snapshot() = default;
  Snapshot(const ModuleState& state, BufferCopies& copies, const RunKey& key);

  const RunKey& key() const { return key_; }

  // The values of ModuleState::buffers. The graph of the second run may save them, so a BufferKeeper
  // that lives until its backward is done puts them in; afterwards it is as if F had run only once.
  const std::vector<at::Tensor>& buffers() const { return buffers_; }

  // To be called when F is done: what F itself did to parameters (a clamp, say) it will do again.
  void note_parameters(const ModuleState& state);

  // While it lives, the calling thread and the modules are as they were at the snapshot; afterwards
  // they are as before. Throws StateError, naming the parameter, if one was changed in place since:
  // gradients would be those of another model (torch refuses the same without recomputation).
  class Again {
   public:
    Again(const Snapshot& snapshot, const ModuleState& state);
    ~Again();
    Again(const Again&) = delete;
    Again& operator=(const Again&) = delete;

   private:
    const ModuleState& state_;
    std::vector<bool> training_before_;  // empty where it is as it was
    std::vector<bool> trained_before_;   // requires_grad of the parameters; likewise
    AutocastScope autocast_;
  };

 private:
  RunKey key_;
  AutocastState autocast_;
  std::vector<bool> training_;
  std::vector<bool> trained_;  // requires_grad of the parameters
  std::vector<at::Tensor> buffers_;
  std::vector<std::uint32_t> versions_;  // of the parameters
};

}  // namespace trestle::nn
