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
#include "trestle/sharding/join.h"
#include "trestle/sharding/options.h"
#include "trestle/sharding/own_parts.h"
#include "trestle/sharding/rank_groups.h"
#include "trestle/sharding/shard_level.h"
#include "trestle/sharding/shard_record.h"

namespace torch::nn {
class Module;
}

namespace trestle {

// What has crossed between ranks since the model was made, as this rank saw it.
struct ShardReport {
  int groups = 0;          // buckets, or units at level Parameters
  std::int64_t steps = 0;  // backwards that were reduced
  std::int64_t reductions =
      0;  // of groups' gradients within the ranks that divide them (of all, at level None)
  Bytes reduced = 0;                   // bytes of gradients that this rank put into them
  Bytes reduced_over_replicas = 0;     // of its pieces of them, into sums over the rows of a mesh
  std::int64_t gathers = 0;            // of groups' parameters
  std::int64_t gathers_among_few = 0;  // of them, among the k ranks of reshard_after_forward = k
  Bytes gathered = 0;                  // bytes of parameters that they put together here
  std::int64_t asked_for_unused = 0;   // small reductions: which parameters had no gradient
  double waited_seconds =
      0;  // at the end of the last backward, for reductions that it did not hide
};

// How far a training has come, as far as random numbers are drawn by it. A training that goes on from a checkpoint has that
// of the one before (save.h).
struct ShardProgress {
  std::int64_t steps = 0;     // backwards that were reduced
  std::int64_t forwards = 0;  // training forwards since the last of them
};

// One model on all ranks of a mesh, each of which trains with its own part of the batch. How much of the model's state each
// rank holds is the level (shard_level.h); ddp.h, zero1.h, zero2.h, fsdp.h and hsdp.h name the usual points.
//
//   trestle::DeviceMesh mesh(world, {{"replicate", 2}, {"shard", 4}});
//   trestle::Sharded sharded(net, mesh, {.level = trestle::ShardLevel::Parameters});   // HSDP
//   auto optimizer = trestle::optim::make_optimizer(sharded.parameters(), {.name = "adamw"});
//   for (auto& [x, y] : loader) {                    // this rank's part of the batch
//     sharded.backward(torch::cross_entropy_loss(sharded.forward(x), y));
//     sharded.clip_grad_norm(1.0);
//     optimizer->step();
//     optimizer->zero_grad();
//   }
//
// The gradients are those of the plain model on all ranks' samples together: the mean over ranks of the ranks' gradients,
// or the mean with weights where backward() is given them. `loss.backward()` by oneself is the same as
// backward(loss).
//
// All ranks make it, and call forward() and backward() equally often; torch::autograd::grad() and create_graph give a
// rank's own gradients, so a gradient that is part of a loss is one of inputs. (At level Parameters the backward through it
// is inside unshard().) One Sharded a model at a time. The model's parameters keep their tensor objects,
// names, shapes and strides; but above level None they are not the ones to give to an optimizer: parameters() are. The
// model must not be moved or cast afterwards, and gradients that it has from before are let go above level None. The mesh's ranks are processes, or threads with a device each.
class Sharded {
 public:
  // All levels. At level Parameters the layers are made, divided and let go one unit after the other, so that a model that
  // fits no rank whole can be made.
  //
  // Throws UsageError for a mesh without the dimension that the level needs, for options that contradict each other, and
  // on all ranks where their models differ, naming the first parameter that does.
  Sharded(const nn::Layers& model, const DeviceMesh& mesh, const ShardOptions& options = {});
  // Any module; call it through run(), or through ShardedModule below. At level Parameters the Hooked modules in it are
  // units (hooked.h), and the rest is one that stays from the forward to the end of the backward; without any, all of it is
  // one unit, which saves memory between the steps only. description() says which.
  Sharded(std::shared_ptr<torch::nn::Module> model, const DeviceMesh& mesh,
          const ShardOptions& options = {});
  // Parameters that others use, as a pipeline whose stage they are of, one of several that take parts of a batch. Their
  // gradients are summed as they are. None of forward(), run() and backward() is for it, but:
  //
  //   stage.gather();                 // before their first use
  //   stage.reduce_next_backward();   // before the last of several backwards, whose gradients add up
  //   stage.finish_reduction();       // after it
  //   stage.release();
  Sharded(NamedTensors parameters, NamedTensors buffers, const sharding::RankGroups& ranks,
          const ShardOptions& options = {});
  Sharded(Sharded&&) noexcept;
  Sharded& operator=(Sharded&&) noexcept;
  ~Sharded();

  // The model's, for nn::Layers.
  at::Tensor forward(const at::Tensor& input);
  nn::Values forward(nn::Values inputs);

  // function(inputs...) as the model's forward, for a module: the function calls it.
  template <class Function, class... Inputs>
  auto run(const Function& function, Inputs... inputs) {
    const Scope scope = begin([&](const Change& change) { (visit_tensors(inputs, change), ...); });
    auto outputs = function(inputs...);
    end(scope, [&](const Change& change) { visit_tensors(outputs, change); });
    return outputs;
  }

  // loss.backward(), and the reduction of the gradients over ranks. `weight`: how much this rank's loss counts, for means
  // over ragged parts: the number of its samples. All ranks give one, or none does; 0 is a rank that has no sample. With
  // no_sync() the last backward has the weight of all together, and the losses are scaled by their parts of it.
  void backward(const at::Tensor& loss, std::optional<double> weight = {});
  // Instead of forward() and backward(), on a rank that has no samples this time while others, which give weights, have: it
  // takes part with zeros. StateError in the first step of units inside of a torch module, whose order is not known yet;
  // UsageError with SyncBatchNorm, which runs on empty batches instead. Where ranks do not know how many batches the others
  // have: join() (join.h).
  void backward_without_samples();

  // Backwards while it lives are not reduced: gradients add up on each rank until a backward outside. (At level Gradients
  // and Parameters this holds the whole gradients on each rank.)
  //
  //   {
  //     const auto no_sync = sharded.no_sync();
  //     sharded.backward(loss(first_half) / 2);
  //   }
  //   sharded.backward(loss(second_half) / 2);
  class NoSync;
  NoSync no_sync();

  // With ShardOptions::reproducible: the numbers of the pieces that are this rank's, in order. A step is one backward for
  // each, without no_sync() and weights; zero_grad() in between begins it anew.
  std::vector<int> own_pieces() const;

  // Of parameters that others use alone: see the third constructor.
  void gather();
  void reduce_next_backward();
  void finish_reduction();
  void release();

  // What this rank's optimizer steps, under the model's names: the parameters themselves at level None, otherwise flat
  // tensors of this rank's part of each, perhaps empty, that get the gradients. In the same order on all ranks. Parameters
  // that were frozen when it was made are not among them, and cannot be trained later: StateError. Others may be frozen,
  // on all ranks alike. An optimizer that looks at more than one number at a time, as LBFGS does, needs level None.
  std::vector<at::Tensor> parameters() const;
  NamedTensors named_parameters() const;
  // Of all of them, and what no_sync() has left in the model's; as an optimizer's zero_grad() does, but for
  // zero_grad(set_to_none = false), which reaches the shards alone.
  void zero_grad();

  // Scales all gradients by the norm of all ranks' together, as optim::clip_grad_norm() does on one; returns the norm, which
  // is the same on all ranks. One small reduction a dimension of the mesh that divides.
  double clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& options = {});

  // The ranks over which parameters() are divided, for what is computed from all of them, as norms; not valid() at level
  // None, where each rank has them whole.
  const comm::Group& shard_ranks() const;

  // While it lives the model's own parameters are there, whole and current, to be looked at, and to be written to in place,
  // on all ranks alike. All ranks call it. A Sharded that is destroyed meanwhile leaves a plain, whole model behind; without
  // it, use of a model whose last step is not on all ranks throws.
  class Unsharded;
  Unsharded unshard();
  // Copies of all parameters, and of the buffers (rank 0's, where the next forward begins with them), whole, on the CPU,
  // under the model's names. All ranks call it.
  NamedTensors state();
  // The other way, from whole tensors of these names, which all ranks have. Names that are not the model's, and those of the
  // model that are missing, are UsageErrors that list them.
  void load_state(const NamedTensors& state);
  // To be called after writing to parameters() by other means than an optimizer between a backward and a forward.
  void shards_changed();

  ShardProgress progress() const;
  void set_progress(const ShardProgress& progress);
  // What this rank has of the model's tensors, as they are: what saving and loading need (save.h).
  sharding::OwnParts own_parts() const;

  const ShardOptions& options() const;
  ShardReport report() const;
  // What happens when, from here to stop_recording(), which throws StateError where nothing is recorded: shard_record.h.
  void start_recording();
  ShardRecord stop_recording();
  // "fsdp: 4 ranks share 1,234 parameters in 5 units ...", a line each.
  std::string description() const;

  class Impl;

 private:
  friend void join(const std::vector<Sharded*>& models, const std::function<void()>& batches,
                   const JoinOptions& options);
  using Change = std::function<void(at::Tensor&)>;
  using Scope = std::shared_ptr<void>;
  Scope begin(const std::function<void(const Change&)>& inputs);
  void end(const Scope& scope, const std::function<void(const Change&)>& outputs);
  const std::shared_ptr<Impl>& here() const;  // throws StateError where it was moved from
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

class Sharded::Unsharded {
 public:
  explicit Unsharded(const std::shared_ptr<Impl>& impl);
  ~Unsharded();
  Unsharded(Unsharded&& other) noexcept;
  Unsharded& operator=(Unsharded&&) = delete;

 private:
  std::weak_ptr<Impl> impl_;
};

// A module with its own forward(), whatever that takes and returns:
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
  Module* operator->() { return module_.get(); }

 private:
  std::shared_ptr<Module> module_;
};

}  // namespace trestle
