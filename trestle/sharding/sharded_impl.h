#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/sharding/flat_parameter_group.h"
#include "trestle/sharding/gradient_reducer.h"
#include "trestle/sharding/hooked.h"
#include "trestle/sharding/join_protocol.h"
#include "trestle/sharding/parameter_unsharder.h"
#include "trestle/sharding/sharded.h"

namespace trestle {

class Sharded::Impl {
 public:
  Impl(const nn::Layers& model, const DeviceMesh& mesh, const ShardOptions& options);
  Impl(std::shared_ptr<torch::nn::Module> model, const DeviceMesh& mesh,
       const ShardOptions& options);
  Impl(NamedTensors parameters, NamedTensors buffers, const sharding::RankGroups& ranks,
       const ShardOptions& options);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  nn::Values forward(nn::Values inputs);
  std::shared_ptr<void> begin(const std::function<void(const Change&)>& inputs);
  void end(const std::shared_ptr<void>& scope, const std::function<void(const Change&)>& outputs);
  void backward(const at::Tensor& loss, std::optional<double> weight);
  void backward_without_samples();

  const NamedTensors& named_parameters() const { return stepped_; }
  double clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& options);
  std::vector<int> own_pieces() const;
  void hold_sync(int change);  // the number of NoSync objects
  void unshard();
  void reshard();
  NamedTensors state();
  void load_state(const NamedTensors& state);
  void shards_changed();
  void finish_reduction();
  void zero_grad();
  const comm::Group& all_ranks() const { return ranks_.all; }

  void start_recording();
  ShardRecord stop_recording();

  // join.cpp
  bool has_synced_norms() const;  // batch norms that count all ranks' samples
  void check_can_join() const;
  void check_outside_of_join(const char* call) const;
  std::size_t join_plan() const;
  void begin_join(const std::shared_ptr<sharding::JoinProtocol>& join, int number);
  void end_join();
  void follow(const sharding::JoinProtocol::Word& word);
  void share_buffers();
  const comm::Group& shard_ranks() const { return ranks_.shard; }
  ShardReport report() const;
  std::string description() const;
  sharding::LocalShards local_shards() const;
  ShardProgress progress() const;
  void set_progress(const ShardProgress& progress);

  ShardOptions options;
  std::shared_ptr<sharding::GradientReducer> reducer;
  void drop_own_gradients();  // what no_sync() has left in the model's parameters

 private:
  struct ForwardScope;

  void check_options() const;
  void check_kept_names() const;
  void start_from_rank_0(const NamedTensors& parameters);
  void make_buckets(const std::vector<std::size_t>& order);
  void make_layer_units();
  void make_unit(const std::string& name, const NamedTensors& parameters);
  // Of a parameter that several units use. Its number.
  std::size_t make_shared_group(const NamedTensors::value_type& parameter);
  void make_module_units();
  void hook_modules();
  std::string units_in_words() const;
  void hook_layers(const std::vector<std::optional<std::size_t>>& unit_of_layer);
  void make_frozen_groups();
  std::shared_ptr<sharding::FlatParameterGroup> make_group(NamedTensors members,
                                                           bool trained) const;
  bool is_kept(const at::Tensor& parameter) const {
    return kept_.contains(parameter.unsafeGetTensorImpl());
  }
  void note_kept(const torch::nn::Module& module, const std::string& name);
  void cast_inputs_of_layers();
  void watch();
  void rebuild_buckets();
  void before_forward();
  void say_forward();
  void say(sharding::JoinProtocol::Word word);
  double clip_own(double max_norm, const optim::ClipGradNormOptions& options);
  std::vector<sharding::JoinProtocol::Earlier> earlier_gradients() const;
  void note_gradients();
  void share_buffers_of(int rank);
  void hand_out_recorder();
  void check_unchanged() const;
  void watch_output(at::Tensor& output) const;
  nn::RunKey next_key();
  void finish_construction();
  NamedTensors shards_of_trained() const;
  void gather_stepped();
  at::Tensor cast_input(const at::Tensor& input) const;

  sharding::RankGroups ranks_;
  NamedTensors parameters_;  // the model's, each once
  NamedTensors trained_;     // those that were trained when it was made
  NamedTensors stepped_;     // what an optimizer gets: trained_ at level None, else their shards
  NamedTensors buffers_;
  std::set<const void*> kept_;  // parameters that are computed in their own dtype in any case
  std::vector<std::shared_ptr<sharding::FlatParameterGroup>> groups_;
  std::vector<sharding::ParameterUnsharder::Unit> units_;
  std::vector<std::size_t> unit_order_;  // of the layers in a forward, where it is known
  std::shared_ptr<sharding::ParameterUnsharder> unsharder_;
  std::int64_t gathered_at_ = 0;  // reducer->steps() when the parameters were last gathered
  std::int64_t forwards_ = 0;     // training forwards since the last reduced backward
  std::int64_t forwards_of_ = 0;  // reducer->steps() that they were counted in
  int no_syncs_ = 0;
  int unshards_ = 0;             // that live
  std::int64_t first_step_ = 0;  // of the training, by which random numbers are drawn
  bool rebuilt_ = false;

  sharding::ShardRecorder recorder_;

  std::shared_ptr<sharding::JoinProtocol> join_;          // inside join()
  int join_number_ = 0;                                   // of this model in it
  std::optional<double> join_weight_;                     // of backwards that are given none
  int buffers_from_ = 0;                                  // whose buffers a forward begins with
  std::vector<sharding::JoinProtocol::Earlier> earlier_;  // earlier_gradients() when asked last
  // In join(): the gradients as the last backward left them.
  std::vector<std::pair<const void*, std::uint32_t>> gradients_seen_;

  std::shared_ptr<torch::nn::Module> module_;                    // of a model that is no Layers
  std::vector<sharding::HookedModule*> hooked_;                  // of each unit; null for the rest
  std::vector<std::shared_ptr<sharding::UnitHook>> unit_hooks_;  // the modules have them weakly
  nn::Graph graph_;                                              // of one that is
};

}  // namespace trestle
