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
  // Allowed, on some ranks or all. Costs a small reduction a step: a parameter that no rank used keeps the gradient it
  // had (none, usually, so that optimizers pass over it); one that some rank used gets the mean, on all.
  Find,
};

// In which dtypes a sharded model computes and reduces; left out: the parameters' own. Other parameter dtypes than their
// own need a level above None: the shards, which the optimizer steps, keep the parameters' own dtype and are the master
// weights (Micikevicius et al. 2018). At level None use precision/autocast.h. fp16 needs a scaled loss: unscale.h.
//
// Modules with floating-point buffers of their own, as batch norm, keep the dtype of their parameters: libtorch takes
// statistics in fp32 with weights in fp32, and inputs in any dtype. Buffers are never cast.
struct ShardPrecision {
  std::optional<at::ScalarType> parameters = {};  // of the module's parameters, and so of gradients
  // In which gradients are summed over ranks. In fp16 the average is divided in two parts, one before the sum and one
  // behind it, so that neither the sum leaves its range nor small gradients vanish. Where it is wider than `parameters`,
  // what no_sync() adds up on a rank is in it too.
  std::optional<at::ScalarType> reduce = {};
  std::optional<at::ScalarType> output = {};  // what forward() returns is cast to it
  bool cast_inputs = true;  // floating-point inputs of forward() are cast to `parameters`
  // Layers that keep the dtype of their parameters: "norm" is a layer of that name, or all whose names begin with "norm.".
  // nn::Layers: each layer's floating-point inputs are cast to what the layer computes in. In a torch module the names are
  // those of its submodules, and it does such casts itself.
  std::vector<std::string> keep = {};
};

struct ShardOptions {
  ShardLevel level = ShardLevel::None;
  // The mesh's dimensions. Ranks along `shard` divide the model's state, ranks along `replicate` repeat it. A mesh may have
  // one of them or both. At level None both replicate.
  std::string replicate = "replicate";
  std::string shard = "shard";

  // Gradients are reduced in buckets of about this many bytes, in the order in which a backward makes them; the first one
  // is smaller, so that communication begins early. At level Parameters each unit is a bucket.
  Bytes bucket = Bytes{25} << 20;
  Bytes first_bucket = Bytes{1} << 20;
  // Level None: averages a bucket in another way than by a sum, as PowerSGD (communication_hook.h).
  sharding::CommunicationHook hook = {};

  // Level Parameters: consecutive layers of nn::Layers are joined to one unit until they have this many bytes; 0 makes
  // each layer with parameters a unit. A torch module is one unit.
  Bytes unit = 0;
  // Level Parameters: whether a unit's parameters are let go between its forward and its backward. Without, they are
  // gathered once a step instead of twice, and need the memory of the whole model.
  bool reshard_after_forward = true;

  UnusedParameters unused_parameters = UnusedParameters::Refuse;
  // All ranks begin with rank 0's parameters and buffers. Without, the ranks' own must be equal already.
  bool broadcast_at_start = true;
  // Each training forward begins with rank 0's buffers, as batch norm's statistics.
  bool broadcast_buffers = true;

  ShardPrecision precision = {};
  // Where the model is to be; nothing: where it is. Layers are moved one by one as they are made.
  std::optional<at::Device> device = {};
  // Shards, and with them what the optimizer remembers, live on the CPU.
  bool shards_on_cpu = false;

  // Random numbers (dropout) are keyed by it, the step and the global micro-batch, so that replicas draw what the plain
  // model's micro-batches draw.
  std::uint64_t seed = 0;
};

}  // namespace trestle
