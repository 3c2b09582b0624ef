#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trestle/nn/buffer_keeper.h"
#include "trestle/nn/detail/autocast_scope.h"
#include "trestle/nn/graph.h"
#include "trestle/nn/run_key.h"

namespace torch::nn {
class Module;
}

// The state that recomputing a forward F needs, for pipelines and activation checkpointing alike.
namespace trestle::nn {

// The modules, parameters and buffers of some layers, looked up once and used at every run.
struct ModuleState {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;     // including children, parents first
  std::vector<std::pair<std::string, at::Tensor>> parameters;  // each once, by its full name
  std::vector<at::Tensor> buffers;                             // each once

  // For layers [first, last) of `graph`.
  static ModuleState of(const Graph& graph, int first, int last);

  std::vector<bool> training_flags() const;
  std::vector<bool> trained_flags() const;  // requires_grad of each parameter
};

// Copies of buffers. While a buffer keeps its value, all snapshots share one copy of it.
class BufferCopies {
 public:
  const std::vector<at::Tensor>& take(const std::vector<at::Tensor>& buffers);

 private:
  std::vector<at::Tensor> latest_;
};

// The state before F ran: random key, autocast, the modules' train/eval flags, which parameters
// require gradients, the buffers (by value: batch norm changes its statistics without a new
// version), and the parameters' versions.
//
//   Snapshot snapshot(state, copies, key);   // then F
//   {
//     const Snapshot::Again again(snapshot, state);
//     BufferKeeper buffers(state.buffers);            // restores those of now
//     buffers.put_in(snapshot.buffers());             // then F again, under snapshot.key()
//   }
class Snapshot {
 public:
  Snapshot() = default;
  Snapshot(const ModuleState& state, BufferCopies& copies, const RunKey& key);

  const RunKey& key() const { return key_; }

  // The values of ModuleState::buffers. The recomputation's graph may save them: they need the
  // values of its end again in its backward.
  const std::vector<at::Tensor>& buffers() const { return buffers_; }

  // Call it when F is done: F's own changes to parameters (a clamp, say) will be repeated.
  void note_parameters(const ModuleState& state);

  // Restores the state of the calling thread and the modules at the snapshot while it lives, then
  // undoes that. Throws StateError with the parameter's name if one was changed in place since: the
  // gradients would be those of another model (torch rejects the same without recomputation).
  class Again {
   public:
    Again(const Snapshot& snapshot, const ModuleState& state);
    ~Again();
    Again(const Again&) = delete;
    Again& operator=(const Again&) = delete;

   private:
    const ModuleState& state_;
    std::vector<bool> training_before_;  // empty if unchanged
    std::vector<bool> trained_before_;   // requires_grad of the parameters; empty if unchanged
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
