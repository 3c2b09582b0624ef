#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/device/named_tensors.h"
#include "trestle/sharding/flat_layout.h"
#include "trestle/sharding/options.h"
#include "trestle/sharding/shard_recorder.h"

namespace trestle::sharding {

// Parameters of one dtype on one device that are communicated together: a bucket, or a unit of level Parameters. Where
// parameters lie in one flat buffer they keep their tensor objects, shapes and strides; only their data moves, and at
// level Parameters the buffer's memory comes and goes.
//
// Three buffers, each made when the level asks for it: the parameters' (levels above None), the gradients' as this rank
// computed them, and the shard, this rank's piece, in the parameters' own dtype.
class FlatParameterGroup {
 public:
  // `pieces` ranks divide it, of which this one has number `piece`; 1 and 0 where nothing is divided. `trained`: it was when
  // the model was sharded; parameters may be frozen since.
  FlatParameterGroup(NamedTensors parameters, bool trained, int pieces, int piece,
                     const ShardOptions& options);

  const NamedTensors& parameters() const { return parameters_; }
  const at::Tensor& parameter(std::size_t i) const { return parameters_[i].second; }
  const std::string& name(std::size_t i) const { return parameters_[i].first; }
  std::size_t size() const { return parameters_.size(); }
  const FlatLayout& layout() const { return layout_; }
  int piece() const { return piece_; }
  Bytes bytes() const;  // of the flat parameters, with padding
  bool trained() const { return trained_; }

  // Puts the parameters into one flat buffer and makes the shard from this rank's piece of it. The shard is that piece
  // itself where parameters stay whole and in their own dtype on their own device.
  void flatten();
  // For each parameter what this rank's optimizer steps: a flat tensor of its part of the shard, perhaps empty.
  const std::vector<at::Tensor>& shards() const { return shards_; }

  // The whole flat parameters from all ranks' shards. gather() begins it and wait_gathered() ends it; gathered() is true
  // in between. Does nothing where they are there already.
  void gather(const comm::Group& group);
  void wait_gathered();
  bool gathered() const { return gathered_; }
  std::int64_t gathers() const { return gathers_; }  // so far
  // What is gathered is written down under this number.
  void set_recorder(ShardRecorder recorder, int number);
  // Level Parameters: frees the flat parameters' memory. Use of one of them throws until the next gather().
  void release();
  // The same, but for this rank's part of what `few` ranks, neighbours among those that divide it, keep together: the next
  // gather() is among them, until forget_part().
  void release_to(const comm::Group& few);
  void forget_part() { part_.reset(); }
  std::int64_t gathers_among_few() const { return gathers_among_few_; }
  // What was gathered is old, and the next gather() gets it anew.
  void forget_gathered();
  // What somebody has written to the whole parameters goes into the shard, before the next gather() would undo it.
  void take_back();
  // Whether somebody has written to whole parameters that are not those of the shard.
  bool is_written() const;
  // Whether somebody, the optimizer, has changed the shard since it was gathered. By its content: optimizers of torch write
  // to data() and leave no trace.
  bool stale() const;
  // For a group that is gone, while its parameters live on: whole ones stay, of others every use throws.
  void abandon(bool current);
  // Whether parameter i still lies where flatten() put it.
  bool in_place(std::size_t i) const;
  // Where somebody, the optimizer, has written to the shards since the last call: graphs that saved the old parameters are
  // told so by autograd, instead of going on with the new ones.
  void note_writes();
  // The same, before a backward: also where an optimizer of torch has stepped, whose parameters stay whole, while only this
  // rank's part of them is new.
  void note_step();

  // This rank's own gradients, flat, in the dtype in which they are reduced; made by the first call, not written to.
  at::Tensor& gradients();
  void set_gradients(at::Tensor gradients) { gradients_ = std::move(gradients); }
  bool has_gradients() const { return gradients_.defined(); }
  void drop_gradients() { gradients_.reset(); }
  // Parameter i's place in gradients(), with its shape and strides.
  at::Tensor gradient_view(std::size_t i);
  // Takes a new buffer where somebody else still holds a view of the last one, beside the parameters' own grad().
  void renew_gradients();
  bool grad_is_view(std::size_t i) const;
  at::ScalarType reduce_dtype() const { return reduce_dtype_; }

  // Gradients that are not reduced yet, where they are reduced in a wider dtype than that of the module: add_to_kept() adds
  // parameter i's grad() to a sum in that dtype and lets it go, or at level None leaves zeros in it. Elsewhere they add up in grad() itself.
  void add_to_kept(std::size_t i);
  bool has_kept(std::size_t i) const { return kept_.defined() && is_kept_[i]; }
  at::Tensor take_kept(std::size_t i);  // the sum; nobody has it afterwards
  void drop_kept();
  void scale_own_gradient(std::size_t i, double factor);  // what is not reduced yet of parameter i

  // The whole parameters in their own dtype, on the CPU, from all ranks' shards, under their names.
  NamedTensors whole(const comm::Group& group) const;
  // The other way: this rank's shard from whole tensors, in the order of parameters().
  void set_shard(const std::vector<at::Tensor>& whole);

  // After a backward that left gradients in the parameters' own grad(): shards without one get zeros, by which
  // drop_zeroed() sees that an optimizer, which has the shards (at level None the parameters), has let its gradients go
  // since, and lets go of those too.
  void note_own_gradients();
  void drop_zeroed();
  void forget_own_gradients() { has_own_gradient_.clear(); }

  // Before a backward writes to gradients() again, where shards keep theirs in it.
  void keep_shard_gradients();
  // Puts a reduced piece into its place in gradients(), whose own numbers nobody needs any more; returns that place.
  at::Tensor put_piece(const at::Tensor& reduced);
  // Adds a reduced piece, times `factor`, to the shards' gradients; parameters whose `used` is false are left as they are.
  void add_to_shards(const at::Tensor& reduced, const std::vector<bool>& used, double factor = 1);

 private:
  at::Tensor view_of(const at::Tensor& flat, std::size_t i) const;
  at::Tensor own_piece(const at::Tensor& flat) const;
  void tell_graphs();
  std::uint64_t version_of_shards() const;
  std::uint64_t version_of_parameters() const;

  NamedTensors parameters_;
  FlatLayout layout_;
  int piece_;
  ShardLevel level_;
  bool trained_;
  at::ScalarType dtype_;          // the parameters' own, of the shard
  at::ScalarType compute_dtype_;  // of the module's parameters
  at::ScalarType reduce_dtype_;
  bool shard_on_cpu_;
  bool gradients_hold_shards_ = false;
  bool separate_shard_ = false;
  bool gathered_ = true;
  std::int64_t gathers_ = 0;
  std::uint64_t known_version_ = 0;  // of the shards, when autograd was told last
  std::uint64_t untouched_ = 0;      // version of the parameters as they were gathered
  at::Tensor flat_;
  at::Tensor shard_;
  at::Tensor gathered_checksum_;  // of the content of the shard as it was gathered
  at::Tensor gradients_;
  at::Tensor kept_;
  std::vector<bool> is_kept_;
  std::vector<at::Tensor> shards_;
  std::vector<bool> has_own_gradient_;  // that note_own_gradients() saw
  at::Tensor part_;                     // of flat_, that few ranks keep
  comm::Group few_;
  std::int64_t gathers_among_few_ = 0;
  comm::Work gathering_;
  at::Tensor to_gather_;  // kept until it is gathered
  ShardRecorder recorder_;
  int number_ = 0;
  ShardRecorder::Entry gathering_entry_;
};

}  // namespace trestle::sharding
