#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/recompute/checkpointed_segment.h"
#include "trestle/sharding/engine/forward_keys.h"
#include "trestle/sharding/engine/module_units.h"
#include "trestle/sharding/engine/shard_engine.h"
#include "trestle/sharding/join/joined_model.h"
#include "trestle/sharding/sharded.h"

namespace trestle {

// A model's forward and backward on top of the engine.
class Sharded::Impl {
 public:
  Impl(const nn::Layers& model, const DeviceMesh& mesh, const ShardOptions& options);
  Impl(std::shared_ptr<torch::nn::Module> model, const DeviceMesh& mesh,
       const ShardOptions& options);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  nn::Values forward(nn::Values inputs);
  std::shared_ptr<void> begin(const std::function<void(const Change&)>& inputs);
  void end(const std::shared_ptr<void>& scope, const std::function<void(const Change&)>& outputs);
  void backward(const at::Tensor& loss, std::optional<double> weight);
  void backward_without_samples();
  void hold_sync(int change);  // of the number of NoSync objects
  double clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& options);
  // Throws UsageError if the model's layers are slices on tensor ranks, which `call` would not ask.
  void refuse_slices(const char* call);
  ShardProgress progress() const { return keys_.progress(engine().reducer()); }
  void set_progress(const ShardProgress& progress) {
    keys_.set_progress(progress, engine().reducer());
  }
  std::vector<int> own_micro_batches() const { return keys_.own_micro_batches(); }
  std::string description() const;

  sharding::ShardEngine& engine() { return *engine_; }
  const sharding::ShardEngine& engine() const { return *engine_; }
  const std::shared_ptr<sharding::ShardEngine>& engine_pointer() const { return engine_; }
  const comm::Group& all_ranks() const { return engine_->ranks().all; }

  // For join().
  void check_can_join() const;
  void check_outside_of_join(const char* call) const;
  std::size_t join_plan() const;  // a hash, the same on all ranks
  void begin_join(const std::shared_ptr<sharding::JoinProtocol>& protocol, int number);
  void end_join();
  void shadow(const sharding::JoinProtocol::Message& message);
  void broadcast_last_buffers();  // of the rank that had batches last

 private:
  struct ForwardScope;

  explicit Impl(std::shared_ptr<sharding::ShardEngine> engine);
  const ShardOptions& options() const { return engine_->options(); }
  sharding::GradientReducer& reducer() { return engine_->reducer(); }
  bool has_sync_batch_norms() const;
  void check_weight(double weight) const;
  void before_forward();
  at::Tensor prepare_input(const at::Tensor& input) const;
  void watch_output(at::Tensor& output) const;

  std::shared_ptr<sharding::ShardEngine> engine_;
  sharding::ForwardKeys keys_;
  sharding::JoinedModel joined_;
  int no_syncs_ = 0;
  nn::Graph graph_;                                  // of nn::Layers
  std::optional<nn::CheckpointedSegment> segments_;  // of graph_, if some are recomputed
  std::shared_ptr<torch::nn::Module> module_;        // of any other model
  std::optional<sharding::ModuleUnits> module_units_;
  std::optional<bool> has_slices_;  // of parameters, on tensor ranks; once known
};

}  // namespace trestle
