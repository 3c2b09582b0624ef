#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/device/detail/visit_tensors.h"
#include "trestle/device/named_tensors.h"
#include "trestle/mesh/device_mesh.h"
#include "trestle/nn/layers.h"
#include "trestle/optim/clip_grad_norm.h"
#include "trestle/sharding/engine/unsharded_scope.h"
#include "trestle/sharding/options/options.h"
#include "trestle/sharding/options/rank_groups.h"
#include "trestle/sharding/options/shard_level.h"
#include "trestle/sharding/record/shard_record.h"
#include "trestle/sharding/record/shard_report.h"

namespace torch::nn {
class Module;
}

namespace trestle {

namespace sharding {
class ShardEngine;
}
struct JoinOptions;

// One model on all ranks of a mesh, each of which trains with its own share of the batch. The level
// (options/shard_level.h) is how much of the model's state is sharded. ddp.h, zero1.h, zero2.h,
// fsdp.h and hsdp.h name the usual choices.
//
//   trestle::DeviceMesh mesh(world, {{"replicate", 2}, {"shard", 4}});
//   trestle::Sharded sharded(net, mesh, {.level = trestle::ShardLevel::Parameters});   // HSDP
//   auto optimizer = trestle::optim::make_optimizer(sharded.parameters(), {.name = "adamw"});
//   for (auto& [x, y] : loader) {                    // this rank's share of the batch
//     sharded.backward(torch::cross_entropy_loss(sharded.forward(x), y));
//     sharded.clip_grad_norm(1.0);
//     optimizer->step();
//     optimizer->zero_grad();
//   }
//
// The gradients equal those of the plain model on all ranks' samples together: the mean of the
// ranks' gradients, weighted if backward() is given weights. `loss.backward()` is the same as
// backward(loss). torch::autograd::grad() and create_graph compute a rank's own gradients, so a
// gradient that is part of a loss must be a gradient of inputs. (At level Parameters the backward
// through it must run inside unshard().)
//
// All ranks start with the first rank's weights (ShardOptions::broadcast). To choose them, make the
// layers as factories with nn::Seed, or the module with seeded(7, [] { return Net(); })
// (device/seeded.h). torch::manual_seed() cannot: ranks that are threads of one process share its
// generator, and draw from it in any order.
//
// All ranks make it, and call forward() and backward() the same number of times. Above level None
// that holds for evaluations too: if one rank evaluates while another one begins something else,
// all ranks get an error at once. A model has one Sharded at a time. Its parameters keep their
// tensor objects, names, shapes and strides. Above level None an optimizer must be given
// parameters() instead, and gradients from before are cleared. The model must not be moved or cast
// afterwards. The mesh's ranks are processes, or threads with a device each.
class Sharded {
 public:
  // At level Parameters the layers are made, sharded and released one unit at a time, so that a
  // model that fits no rank whole can be made.
  //
  // Throws UsageError for a mesh without the dimension that the level needs, for options that
  // contradict each other, and on all ranks where their models differ, with the first difference.
  Sharded(const nn::Layers& model, const DeviceMesh& mesh, const ShardOptions& options = {});
  // Any module; call it through run(), or through ShardedModule below. At level Parameters each
  // Hooked module in it (hooks/hooked.h) is a unit. The rest of the model is a unit that stays
  // gathered from the forward to the end of the backward. Without Hooked modules the whole model is
  // one unit, which saves memory only between steps. description() lists units.
  Sharded(std::shared_ptr<torch::nn::Module> model, const DeviceMesh& mesh,
          const ShardOptions& options = {});
  Sharded(Sharded&&) noexcept;
  Sharded& operator=(Sharded&&) noexcept;
  ~Sharded();

  // The forward of nn::Layers.
  at::Tensor forward(const at::Tensor& input);
  nn::Values forward(nn::Values inputs);

  // The forward of a module: function(inputs...), which calls it.
  template <class Function, class... Inputs>
  auto run(const Function& function, Inputs... inputs) {
    const Scope scope = begin([&](const Change& change) { (visit_tensors(inputs, change), ...); });
    auto outputs = function(inputs...);
    end(scope, [&](const Change& change) { visit_tensors(outputs, change); });
    return outputs;
  }

  // loss.backward(), and the reduction of the gradients over ranks. `weight` is the number of this
  // rank's samples, for losses that are means over shares of different sizes. All ranks give one,
  // or none does; a rank without samples gives 0. After no_sync() the last backward takes the
  // weight of all backwards together, and each loss is scaled by its share of it.
  void backward(const at::Tensor& loss, std::optional<double> weight = {});
  // Instead of forward() and backward(), on a rank without samples while other ranks, which give
  // weights, have some: it reduces zeros. Throws StateError in the first step with Hooked modules,
  // whose order is not known yet. Throws UsageError with SyncBatchNorm, which takes empty batches
  // instead. If ranks do not know each other's numbers of batches, use join() (join.h).
  void backward_without_samples();

  // While it lives, backwards are not reduced: gradients accumulate on each rank until a backward
  // outside. (At levels Gradients and Parameters each rank then holds whole gradients.)
  //
  //   {
  //     const auto no_sync = sharded.no_sync();
  //     sharded.backward(loss(first_half) / 2);
  //   }
  //   sharded.backward(loss(second_half) / 2);
  class NoSync;
  NoSync no_sync();

  // With ShardOptions::reproducible: the numbers of this rank's micro-batches, in order. A step is
  // one backward for each, without no_sync() and weights. zero_grad() in between restarts the step.
  std::vector<int> own_micro_batches() const;

  // The tensors that this rank's optimizer steps, under the model's names: the parameters at level
  // None, otherwise their shards, which get the gradients. A shard is a flat tensor, perhaps empty.
  // The order is the same on all ranks.
  //
  // Parameters that were frozen when it was made are not among them, and training them later is a
  // StateError. The trained ones may be frozen, on all ranks alike. An optimizer that needs a
  // parameter's elements together, as LBFGS, needs level None.
  std::vector<at::Tensor> parameters() const;
  NamedTensors named_parameters() const;
  // Clears all gradients, and those of no_sync() in the model's own parameters. An optimizer's
  // zero_grad() does the same, but zero_grad(set_to_none = false) reaches only the shards.
  void zero_grad();

  // Scales all gradients by the norm over all ranks, as optim::clip_grad_norm() does on one, and
  // returns the norm, which is the same on all ranks. Costs one small reduction over the ranks that
  // shard the model. Throws UsageError for a model of which tensor ranks hold slices.
  double clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& options = {});

  // For functions that take a norm: throws UsageError, which names the call, for such a model.
  void refuse_slices(const char* call);

  // The ranks over which parameters() are sharded; not valid() at level None.
  const comm::Group& shard_ranks() const;

  // While it lives, the model's own parameters are whole and current. They may be read, and written
  // to in place, on all ranks alike. All ranks call it. A Sharded that is destroyed meanwhile
  // leaves a plain, whole model. Without it, any use of a model whose parameters are not whole on
  // all ranks throws.
  using Unsharded = sharding::UnshardedScope;
  Unsharded unshard();
  // Whole copies of all parameters and buffers, on the CPU, under the model's names. Buffers are
  // rank 0's, if the next forward begins with those. All ranks call it.
  NamedTensors state();
  // Loads whole tensors, which all ranks have. Throws UsageError that lists names that are missing
  // and that the model lacks.
  void load_state(const NamedTensors& state);
  // The next forward all-gathers the parameters again. Call it after your own code has written to
  // parameters(), for example averaged weights. It is not needed
  //
  // - after the step of any optimizer between a backward and the next forward;
  // - after load_state() and load(), which call it;
  // - after writing to the model's own parameters inside unshard();
  // - at level None, where parameters() are the model's own.
  void shards_changed();

  ShardProgress progress() const;
  void set_progress(const ShardProgress& progress);

  const ShardOptions& options() const;
  ShardReport report() const;
  // Records when what happens (record/shard_record.h). stop_recording() throws StateError without
  // start_recording().
  void start_recording();
  ShardRecord stop_recording();
  // "level parameters on the mesh shard 4: 4 ranks, 1,234 parameters in 5 flat groups of 5 units".
  std::string description() const;

  // For trestle's own sources.
  sharding::ShardEngine& engine() const;
  // Throws UsageError, which names the call, inside join().
  sharding::ShardEngine& engine_outside_of_join(const char* call) const;
  class Impl;

 private:
  friend void join(const std::vector<Sharded*>& models, const std::function<void()>& batches,
                   const JoinOptions& options);
  using Change = std::function<void(at::Tensor&)>;
  using Scope = std::shared_ptr<void>;
  Scope begin(const std::function<void(const Change&)>& inputs);
  void end(const Scope& scope, const std::function<void(const Change&)>& outputs);
  const std::shared_ptr<Impl>& pointer() const;  // throws StateError after a move
  Impl& impl() const;

  std::shared_ptr<Impl> impl_;
};

class Sharded::NoSync {
 public:
  explicit NoSync(const std::shared_ptr<Impl>& impl);
  ~NoSync();
  NoSync(NoSync&& other) noexcept;
  NoSync& operator=(NoSync&&) = delete;

 private:
  std::weak_ptr<Impl> impl_;
};

// A module with its own forward(), of any inputs and outputs:
//
//   auto net = std::make_shared<NetImpl>();
//   trestle::ShardedModule<NetImpl> sharded(net, mesh);
//   auto [logits, features] = sharded.forward(image, mask);
template <class Module>
class ShardedModule : public Sharded {
 public:
  ShardedModule(std::shared_ptr<Module> module, const DeviceMesh& mesh,
                const ShardOptions& options = {})
      : Sharded(std::static_pointer_cast<torch::nn::Module>(module), mesh, options),
        module_(std::move(module)) {}

  template <class... Inputs>
  auto forward(Inputs... inputs) {
    return run([this](auto&... given) { return module_->forward(given...); }, std::move(inputs)...);
  }
  // Throws StateError for an object that was moved from.
  Module* operator->() {
    engine();
    return module_.get();
  }

 private:
  std::shared_ptr<Module> module_;
};

}  // namespace trestle
