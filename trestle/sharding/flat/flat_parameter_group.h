#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/device/named_tensors.h"
#include "trestle/sharding/flat/flat_layout.h"
#include "trestle/sharding/options/options.h"
#include "trestle/sharding/record/shard_recorder.h"

namespace trestle::sharding {

// Parameters of one dtype on one device that are communicated together: a bucket, or a part of a
// unit at level Parameters. In a flat buffer they keep their tensor objects, shapes and strides.
// Only their data moves, and at level Parameters the buffer's memory is freed and allocated.
//
// It holds up to three buffers, which exist where the level needs them: the flat parameters (above
// level None), the flat gradients of this rank, and this rank's shard in the parameters' own dtype.
class FlatParameterGroup {
 public:
  // Whether the parameters were trained when the model was sharded. They may be frozen since.
  enum class Use : std::uint8_t { Trained, Frozen };
  // `shards` ranks shard it, and this rank holds number `shard_index`; 1 and 0 where nothing is
  // sharded.
  FlatParameterGroup(NamedTensors parameters, Use use, int shards, int shard_index,
                     const ShardOptions& options);

  const NamedTensors& parameters() const { return parameters_; }
  const at::Tensor& parameter(std::size_t i) const { return parameters_[i].second; }
  const std::string& name(std::size_t i) const { return parameters_[i].first; }
  // "'in.weight' to 'in.bias'", for messages.
  std::string describe_names() const;
  std::size_t size() const { return parameters_.size(); }
  const FlatLayout& layout() const { return layout_; }
  int shard_index() const { return shard_index_; }
  Bytes bytes() const;  // of the flat parameters, with padding
  bool trained() const { return use_ == Use::Trained; }

  // Moves the parameters into one flat buffer and makes the shard. The shard is a view of the
  // buffer where parameters stay whole, in their own dtype and on their own device.
  void flatten();
  // For each parameter the tensor that this rank's optimizer steps: a flat tensor on the shard's
  // memory, perhaps empty.
  const std::vector<at::Tensor>& shards() const { return shards_; }

  // All-gathers the flat parameters from all ranks' shards: gather() begins and wait_gathered()
  // waits. Does nothing where they are gathered already.
  void gather(const comm::Group& group);
  void wait_gathered();
  bool gathered() const { return gathered_; }
  std::int64_t gathers() const { return gathers_; }  // so far
  // Records gathers under this number.
  void set_recorder(ShardRecorder recorder, int number);
  // Level Parameters: frees the flat parameters. Any use of a parameter throws until the next
  // gather().
  void release();
  // As release(), but the ranks of `neighbours` keep the flat parameters together, an equal part
  // each. The next gather() is among them, until forget_neighbours().
  void release_to(const comm::Group& neighbours);
  void forget_neighbours() { neighbour_part_.reset(); }
  std::int64_t gathers_from_neighbours() const { return gathers_from_neighbours_; }
  // Marks the gathered parameters as outdated: the next gather() replaces them.
  void forget_gathered();
  // Copies what the user wrote to the whole parameters into the shard, before the next gather()
  // overwrites it.
  void take_back();
  // Whether the user wrote to whole parameters that are a copy of the shard.
  bool is_written() const;
  // Whether the optimizer changed the shard since it was gathered. Compares checksums: torch's
  // optimizers write to data(), which leaves no trace.
  bool stale() const;
  // Called when the Sharded is destroyed and its parameters live on. Whole, current parameters
  // stay; use of others throws.
  enum class Content : std::uint8_t { Outdated, Current };
  void abandon(Content content);
  // Whether parameter i still lies where flatten() put it.
  bool in_place(std::size_t i) const;
  // Bumps the parameters' versions if the optimizer wrote to the shards since the last call:
  // autograd then refuses graphs that saved the old parameters.
  void note_writes();
  // As note_writes(), before a backward. It also finds writes of torch's optimizers where
  // parameters stay whole.
  void note_step();

  // This rank's own gradients, flat, in the dtype of the reduction. The first call allocates them,
  // not initialised.
  at::Tensor& gradients();
  void set_gradients(at::Tensor gradients) { gradients_ = std::move(gradients); }
  bool has_gradients() const { return gradients_.defined(); }
  void drop_gradients() { gradients_.reset(); }
  // Parameter i's place in gradients(), with its shape and strides.
  at::Tensor gradient_view(std::size_t i);
  // Drops the buffer if tensors other than the parameters' grad() are views of it.
  void renew_gradients();
  bool grad_is_view(std::size_t i) const;
  at::ScalarType reduce_dtype() const { return reduce_dtype_; }

  // Gradients of no_sync(), where the reduction's dtype is wider than the module's. accumulate()
  // adds parameter i's grad() to a sum in the wider dtype and clears it (at level None it zeroes
  // it). Elsewhere gradients accumulate in grad().
  void accumulate(std::size_t i);
  bool has_accumulated(std::size_t i) const { return accumulated_.defined() && is_accumulated_[i]; }
  at::Tensor take_accumulated(std::size_t i);  // the sum, which the group then forgets
  void drop_accumulated();
  void scale_own_gradient(std::size_t i, double factor);  // what is not reduced yet of parameter i

  // All-gathers the whole parameters in their own dtype, on the CPU, under their names.
  NamedTensors whole(const comm::Group& group) const;
  // Sets this rank's shard from whole tensors, in the order of parameters().
  void set_shard(const std::vector<at::Tensor>& whole);

  // After a backward inside no_sync(). The optimizer holds the shards (at level None the
  // parameters), not the gradients that wait in the module. note_own_gradients() gives each such
  // shard a zero gradient. If the optimizer clears that, drop_zeroed() clears the waiting gradient
  // too.
  void note_own_gradients();
  void drop_zeroed();
  void forget_own_gradients() { has_own_gradient_.clear(); }

  // Before a backward writes to gradients(): copies shards' gradients that lie in it.
  void keep_shard_gradients();
  // This rank's shard of gradients(), after a hook has averaged them whole. The other gradients are
  // freed, except at level OptimizerState.
  at::Tensor keep_own_shard();
  // Copies a reduced shard to its place in gradients(), whose other contents are no longer needed.
  // Returns that place.
  at::Tensor put_shard(const at::Tensor& reduced);
  // Adds a reduced shard, times `factor`, to the gradients of the shards() whose `used` is true.
  void add_to_shards(const at::Tensor& reduced, const std::vector<bool>& used, double factor = 1);

 private:
  at::Tensor view_of(const at::Tensor& flat, std::size_t i) const;
  at::Tensor own_shard(const at::Tensor& flat) const;
  void bump_versions();
  std::uint64_t version_of_shards() const;
  std::uint64_t version_of_parameters() const;

  NamedTensors parameters_;
  FlatLayout layout_;
  int shard_index_;
  ShardLevel level_;
  Use use_;
  at::ScalarType dtype_;          // the parameters' own, of the shard
  at::ScalarType compute_dtype_;  // of the module's parameters
  at::ScalarType reduce_dtype_;
  bool shard_on_cpu_;
  bool gradients_hold_shards_ = false;
  bool separate_shard_ = false;
  bool gathered_ = true;
  std::int64_t gathers_ = 0;
  std::uint64_t known_version_ = 0;  // of the shards, at the last bump_versions()
  std::uint64_t untouched_ = 0;      // version of the parameters as they were gathered
  at::Tensor flat_;
  at::Tensor shard_;
  at::Tensor gathered_checksum_;  // of the shard as it was gathered
  at::Tensor gradients_;
  at::Tensor accumulated_;
  std::vector<bool> is_accumulated_;
  std::vector<at::Tensor> shards_;
  std::vector<bool> has_own_gradient_;  // at the last note_own_gradients()
  at::Tensor neighbour_part_;           // of flat_, which this rank keeps for its neighbours
  comm::Group neighbours_;
  std::int64_t gathers_from_neighbours_ = 0;
  comm::Work gathering_;
  at::Tensor to_gather_;  // held until it is gathered
  ShardRecorder recorder_;
  int number_ = 0;
  ShardRecorder::Entry gathering_entry_;
};

using FlatParameterGroups = std::vector<std::shared_ptr<FlatParameterGroup>>;

}  // namespace trestle::sharding
