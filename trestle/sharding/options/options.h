#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/sharding/hooks/communication_hook.h"
#include "trestle/sharding/options/shard_level.h"

namespace trestle::nn {
struct Graph;
}

namespace trestle {

// The response to a trained parameter that gets no gradient in a reduced backward.
enum class UnusedParameters {
  Refuse,  // throw StateError that lists the names
  // Allow it. Costs a small reduction a step. A parameter that no rank used keeps its old gradient,
  // usually none, so that optimizers skip it. A parameter that some rank used gets the mean, on all
  // ranks.
  Find,
  // Allow it, if every step of a rank uses the same parameters as its first step (a static graph).
  // Only the first step looks for them, and no reduction waits for them. Throws StateError with the
  // names for a step that differs from the first, in which parameters get gradients or in how many
  // a parameter gets.
  Static,
};

// The dtypes of a sharded model; a field left out means the parameters' own dtype. Another dtype
// for `parameters` needs a level above None: the shards, which the optimizer steps, keep the own
// dtype and are the master weights (Micikevicius et al. 2018). At level None use
// precision/autocast.h. fp16 needs a scaled loss: unscale.h.
//
// Modules with floating-point buffers of their own, such as batch norms, keep the dtype of their
// parameters: libtorch computes statistics in fp32 with weights in fp32, for inputs of any dtype.
// Buffers are never cast.
struct ShardPrecision {
  std::optional<at::ScalarType> parameters = {};  // of the module's parameters, and so of gradients
  // The dtype of sums of gradients over ranks. In fp16 the average is divided twice, before and
  // after the sum, so that the sum stays in range and small gradients do not vanish. If it is wider
  // than `parameters`, gradients of no_sync() accumulate in it.
  std::optional<at::ScalarType> reduce = {};
  std::optional<at::ScalarType> output = {};  // forward()'s outputs are cast to it
  bool cast_inputs = true;  // forward()'s floating-point inputs are cast to `parameters`
  // Layers that keep the dtype of their parameters: "norm" is the layer of that name and all whose
  // names begin with "norm.". In nn::Layers each layer's floating-point inputs are then cast to the
  // layer's dtype. In a torch module the names are those of submodules, and the module casts inputs
  // itself.
  std::vector<std::string> keep = {};
};

// Level Parameters: what happens to a unit's parameters between its forward and its backward.
//
//     true    They are released, and gathered again for the backward.
//     false   They stay: one gather a step instead of two, and the memory of the whole model.
//     k       Each k neighbours along the mesh's shard dimension keep them, 1/k each, and the
//             backward gathers them among these, for instance within a machine. k must divide
//             the ranks of the dimension.
class Reshard {
 public:
  Reshard(bool reshard) : ranks_(reshard ? 0 : 1) {}      // NOLINT(google-explicit-constructor)
  Reshard(int ranks) : ranks_(ranks), is_count_(true) {}  // NOLINT(google-explicit-constructor)

  bool to_all() const { return !is_count_ && ranks_ == 0; }
  int ranks() const { return ranks_; }  // that keep them together, unless to_all()

 private:
  int ranks_;
  bool is_count_ = false;
};

// Level Parameters: which parameters form a unit, and so are gathered and released together. At
// most one of the two.
//
// By default each layer of nn::Layers with parameters is a unit. In a torch module each
// trestle::Hooked module (hooks/hooked.h) is one, and the rest of the model is another.
struct ShardUnits {
  // By name or type: "down1"; "blocks" for all whose names begin with "blocks."; "Linear". In
  // nn::Layers a named layer begins a unit, which extends to the next one (the layers of "blocks"
  // are one). In a torch module these Hooked modules alone are units. UsageError, with the nearest
  // name, for one that does not exist.
  std::vector<std::string> names = {};
  // By size: consecutive layers of nn::Layers are joined until they have this many bytes. In a
  // torch module only Hooked modules of this size or more are units.
  Bytes bytes = 0;
};

// The names of the mesh's dimensions. Ranks along `shard` shard the model's state, ranks along
// `replicate` replicate it. A mesh has one of them or both. At level None both replicate.
struct ShardMesh {
  std::string replicate = "replicate";
  std::string shard = "shard";
};

// The levels below Parameters reduce gradients in buckets, in the order in which a backward
// computes them. At level Parameters each unit is a bucket.
struct ShardBuckets {
  Bytes size = Bytes{25} << 20;  // about this many bytes each
  Bytes first = Bytes{1} << 20;  // the first is smaller, so that communication begins early
  // Replaces the sum over ranks, as PowerSGD does (hooks/communication_hook.h).
  sharding::CommunicationHook hook = {};
};

struct ShardBroadcast {
  // All ranks begin with rank 0's parameters and buffers. Otherwise the ranks' own must be equal.
  bool at_start = true;
  bool buffers =
      true;  // each training forward begins with rank 0's buffers (batch norm's statistics)
};

// Training that computes the same bits on 1, 2, 4 ... ranks and at every level. A batch is cut into
// a fixed number of equal micro-batches. A rank computes its micro-batches one after the other,
// each in a forward and a backward of its own. The gradients of micro-batches, and of ranks, are
// added up in a binary tree.
//
//   trestle::Sharded sharded(net, mesh, {.reproducible = {.micro_batches = 8}});
//   for (const int i : sharded.own_micro_batches()) {   // the last backward reduces
//     const at::Tensor out = sharded.forward(x.chunk(8)[i]);
//     sharded.backward(torch::cross_entropy_loss(out, y.chunk(8)[i]));
//   }
//
// It costs: a forward and a backward for each micro-batch, of which only the last hides
// communication; on each rank up to log2(micro_batches / ranks) + 1 times the memory of all
// gradients, at every level; and an exact sum for norms. It requires micro-batches of equal shapes,
// one kind of processor, and an optimizer that treats each element alike, wherever it lies (those
// of optim::make_optimizer() over float32 do). Running statistics of batch norms still differ: they
// are those of rank 0's micro-batches.
struct Reproducible {
  int micro_batches = 0;  // of a batch, over all ranks: a power of two; 0 = off
  // The number of threads of each rank. Kernels divide sums by it. StateError if a rank computes
  // with another number.
  int threads = 1;
};

struct ShardOptions {
  ShardLevel level = ShardLevel::None;
  ShardPrecision precision = {};
  Reshard reshard_after_forward = true;
  UnusedParameters unused_parameters = UnusedParameters::Refuse;
  // The model is moved to it, layer by layer as it is made. Without one the model stays where it
  // is.
  std::optional<at::Device> device = {};

  ShardUnits units = {};
  ShardMesh mesh = {};
  ShardBuckets buckets = {};
  ShardBroadcast broadcast = {};
  // Keeps shards, and so the optimizer's state, in CPU memory.
  bool shards_on_cpu = false;
  Reproducible reproducible = {};
  // Activation checkpointing of nn::Layers, as in PipelineOptions: segments of equal size, each of
  // which keeps only its inputs until its own backward. 0 = none; more than there are layers: one
  // segment a layer. At level Parameters a segment is unsharded again for its recomputation.
  int checkpoint_segments = 0;
  // nn::Layers: called once, when the model is sharded. May replace the layers' forwards, for
  // instance to checkpoint single layers (parallel/checkpoint_layers.h).
  std::function<void(nn::Graph&)> wrap_layers = {};
  // The seed of random numbers (dropout). They are keyed by it, the step and the global
  // micro-batch, so that ranks draw what the plain model's micro-batches draw.
  std::uint64_t seed = 0;
};

}  // namespace trestle
