#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/sharding/communication_hook.h"
#include "trestle/sharding/shard_level.h"

namespace trestle {

// A parameter that is trained and gets no gradient in a backward that is reduced.
enum class UnusedParameters {
  Refuse,  // StateError that lists their names
  // Allowed, on some ranks or all. Costs a small reduction a step: a parameter that no rank used
  // keeps the gradient it had (none, usually, so that optimizers pass over it); one that some rank
  // used gets the mean, on all.
  Find,
  // Allowed, if every step is like the first one on each rank (a static graph): which parameters
  // get no gradient is found in the first step, as with Find, and not asked for again, and no
  // reduction waits for them. A step in which others get one, or one gets more or fewer of them in
  // its backward, is a StateError with their names.
  Static,
};

// In which dtypes a sharded model computes and reduces; left out: the parameters' own. Other
// parameter dtypes than their own need a level above None: the shards, which the optimizer steps,
// keep the parameters' own dtype and are the master weights (Micikevicius et al. 2018). At level
// None use precision/autocast.h. fp16 needs a scaled loss: unscale.h.
//
// Modules with floating-point buffers of their own, as batch norm, keep the dtype of their
// parameters: libtorch takes statistics in fp32 with weights in fp32, and inputs in any dtype.
// Buffers are never cast.
struct ShardPrecision {
  std::optional<at::ScalarType> parameters = {};  // of the module's parameters, and so of gradients
  // In which gradients are summed over ranks. In fp16 the average is divided in two parts, one
  // before the sum and one behind it, so that neither the sum leaves its range nor small gradients
  // vanish. Where it is wider than `parameters`, what no_sync() adds up on a rank is in it too.
  std::optional<at::ScalarType> reduce = {};
  std::optional<at::ScalarType> output = {};  // what forward() returns is cast to it
  bool cast_inputs = true;  // floating-point inputs of forward() are cast to `parameters`
  // Layers that keep the dtype of their parameters: "norm" is a layer of that name, or all whose
  // names begin with "norm.". nn::Layers: each layer's floating-point inputs are cast to what the
  // layer computes in. In a torch module the names are those of its submodules, and it does such
  // casts itself.
  std::vector<std::string> keep = {};
};

// Level Parameters: what becomes of a unit's parameters between its forward and its backward.
//
//     true    they are let go, and gathered from all ranks that divide them for the backward
//     false   they stay: one gather a step instead of two, and the memory of the whole model
//     k       each k neighbours along `shard` keep them, a part of 1/k each, and the backward gathers them among these
//             alone, as within a machine. A number that divides the ranks of `shard`, or a UsageError.
class Reshard {
 public:
  Reshard(bool reshard) : ranks_(reshard ? 0 : 1) {}      // NOLINT(google-explicit-constructor)
  Reshard(int ranks) : ranks_(ranks), is_count_(true) {}  // NOLINT(google-explicit-constructor)

  bool to_all() const { return !is_count_ && ranks_ == 0; }
  int ranks() const { return ranks_; }  // that keep them together; where not to_all()

 private:
  int ranks_;
  bool is_count_ = false;
};

// Training that gives the same bits on 1, 2, 4 ... ranks and at every level. Each batch is cut into
// a fixed number of equal pieces, whoever computes them; a rank computes its pieces one after the
// other, each in a forward and a backward of its own, and the gradients of pieces, and of ranks,
// are added up neighbours first.
//
//   trestle::Sharded sharded(net, mesh, {.reproducible = {.pieces = 8}});   // on 1, 2, 4 or 8 ranks
//   for (const int piece : sharded.own_pieces()) {                           // the last backward reduces
//     const at::Tensor out = sharded.forward(x.chunk(8)[piece]);
//     sharded.backward(torch::cross_entropy_loss(out, y.chunk(8)[piece]));
//   }
//
// What it costs: a forward and a backward for each piece, of which only the last hides
// communication; on each rank up to log2(pieces / ranks) + 1 times the memory of all gradients, at
// every level; and a norm that is added up exactly. What it asks for: pieces of equal shapes, the
// same kind of processor, and an optimizer that treats each number alike, wherever it stands (those
// of optim::make_optimizer() over float32 do). What stays different: running statistics of batch
// norms, which are of rank 0's pieces.
struct Reproducible {
  int pieces = 0;  // of a batch, over all ranks: a power of two; 0 = training is not cut
  int threads =
      1;  // that each rank computes with: kernels divide sums by them. Another number is a StateError
};

struct ShardOptions {
  ShardLevel level = ShardLevel::None;
  // The mesh's dimensions. Ranks along `shard` divide the model's state, ranks along `replicate`
  // repeat it. A mesh may have one of them or both. At level None both replicate.
  std::string replicate = "replicate";
  std::string shard = "shard";

  // Gradients are reduced in buckets of about this many bytes, in the order in which a backward
  // makes them; the first one is smaller, so that communication begins early. At level Parameters
  // each unit is a bucket.
  Bytes bucket = Bytes{25} << 20;
  Bytes first_bucket = Bytes{1} << 20;
  // Level None: averages a bucket in another way than by a sum, as PowerSGD (communication_hook.h).
  sharding::CommunicationHook hook = {};

  // Level Parameters: what is a unit, whose parameters are put together and let go together. In
  // nn::Layers consecutive layers are joined until they have `unit` bytes; with 0 each layer with
  // parameters is one. In a torch module each trestle::Hooked module (hooked.h) of `unit` bytes or
  // more is one, and the rest of the model; without any, all of it is.
  Bytes unit = 0;
  // Instead, by name or type: "down1", "blocks" for all whose names begin with "blocks.", "Linear".
  // In nn::Layers a unit begins with a layer that is named, and goes on to the next (those that
  // "blocks" names are one); in a torch module these Hooked modules alone are units. UsageError for
  // one that is not there, with the nearest name.
  std::vector<std::string> units = {};
  Reshard reshard_after_forward = true;

  UnusedParameters unused_parameters = UnusedParameters::Refuse;
  // All ranks begin with rank 0's parameters and buffers. Without, the ranks' own must be equal
  // already.
  bool broadcast_at_start = true;
  // Each training forward begins with rank 0's buffers, as batch norm's statistics.
  bool broadcast_buffers = true;

  ShardPrecision precision = {};
  // Where the model is to be; nothing: where it is. Layers are moved one by one as they are made.
  std::optional<at::Device> device = {};
  // Shards, and with them what the optimizer remembers, live on the CPU.
  bool shards_on_cpu = false;

  // The same bits on any number of ranks, at a price.
  Reproducible reproducible = {};

  // Random numbers (dropout) are keyed by it, the step and the global micro-batch, so that replicas
  // draw what the plain model's micro-batches draw.
  std::uint64_t seed = 0;
};

}  // namespace trestle
