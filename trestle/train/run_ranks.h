#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trestle/checkpoint/files/save_ranks.h"
#include "trestle/comm/gather.h"
#include "trestle/comm/world.h"
#include "trestle/data/dataset.h"
#include "trestle/data/loader.h"
#include "trestle/device/device.h"
#include "trestle/mesh/device_mesh.h"
#include "trestle/models/transformer/tensor_split.h"
#include "trestle/nn/metrics.h"
#include "trestle/recipe/recipe.h"
#include "trestle/sharding/options/rank_groups.h"

// The ranks of a run. Inside of the trainer. Not installed.
namespace trestle::train {

// By default one process alone, which sends nothing. All ranks call the same functions in the same
// order.
class RunRanks {
 public:
  RunRanks() = default;
  explicit RunRanks(const World* world);

  // Lays the ranks out as [mesh] describes: `replicate` x `shard` pipelines, each of `tensor` ranks
  // a stage. Throws UsageError for another number of ranks. All ranks call it.
  void lay_out(const recipe::Recipe::Mesh& mesh);
  // The rank of the last stage in each pipeline. Without it, the pipeline's last rank; in a V it is
  // the first.
  void set_rank_of_last_stage(int rank) { rank_of_last_stage_ = rank; }

  bool alone() const { return !world_; }
  int rank() const { return world_ ? world_->rank() : 0; }
  int size() const { return world_ ? world_->size() : 1; }
  // One rank shows the progress and writes metrics, pictures and logs.
  bool reports() const { return rank() == 0; }
  // The first stage takes the inputs; the last one computes the outputs and takes the targets.
  bool is_first() const { return stage_rank() == 0; }
  bool is_last() const {
    return stage_rank() == rank_of_last_stage_.value_or(pipeline_ranks() - 1);
  }
  int pipeline_ranks() const { return mesh_ ? mesh_->size("pipeline") : size(); }
  // The number of pipelines that share each batch, and the number of this rank's pipeline.
  int replicas() const { return mesh_ ? groups_.all.size() : 1; }
  int replica() const { return mesh_ ? groups_.all.rank() : 0; }
  // The ranks that split this rank's layers; one rank alone without `tensor` in [mesh].
  const models::TensorSplit& tensor() const { return tensor_; }
  // Whether this rank counts in sums over the ranks of one pipeline: values that are equal in all
  // replicas, and on all tensor ranks, count once.
  bool counts() const { return replica() == 0 && tensor_.ranks.rank() == 0; }
  // The level of sharding over the ranks of [mesh] shard.
  ShardLevel level() const { return level_; }
  data::Share share() const { return {.part = replica(), .parts = replicas()}; }
  // The number of examples of this replica's share of a batch (data/loader.h).
  std::int64_t share_of(std::int64_t examples) const {
    return examples * (replica() + 1) / replicas() - examples * replica() / replicas();
  }
  // The number of a batch's examples, of all replicas together; `most` in each batch of `loader`
  // but its last.
  std::int64_t examples_of(const data::Batch& batch, std::int64_t most,
                           const data::Loader& loader) const;
  comm::Group pipeline_group() const;  // not valid if one rank holds all stages
  // The ranks that hold the same stages, of all pipelines; not valid for one pipeline.
  const sharding::RankGroups& replica_groups() const { return groups_; }
  const DeviceMesh& mesh() const { return *mesh_; }  // with several ranks of a stage
  // The part of the data that this rank reads; nothing on the ranks between the first and the last
  // stage.
  std::optional<data::Part> reads() const;
  const World& world() const { return *world_; }
  comm::Group group() const { return world_ ? world_->group() : comm::Group(); }
  checkpoint::SaveRanks saving() const;

  // "4 ranks (threads)"; empty alone.
  std::string words() const;

  // Whether `mine` is true on any rank.
  bool any(bool mine) const;
  // The sum over the pipelines' last ranks, of the first tensor rank each, on all ranks.
  std::vector<double> sum_of_last(std::vector<double> mine) const;
  // The rows (dimension 0) of all replicas in their order, on the CPU. A replica without rows
  // passes None. The ranks that hold the same stages call it.
  at::Tensor all_rows(const at::Tensor& own) const;
  std::string from_first(std::string mine) const;
  // One value of each rank (comm/gather.h).
  template <class T>
  std::vector<T> gather(const T& mine) const {
    return alone() ? std::vector<T>{mine} : comm::all_gather_values(group(), mine);
  }
  // The lines of all ranks as one list, in the order of the ranks.
  std::vector<std::string> gather_lines(const std::vector<std::string>& mine) const;
  std::int64_t sum(std::int64_t mine) const;
  // The sum over the ranks of one pipeline, for values that are equal in all pipelines.
  std::int64_t sum_of_pipeline(std::int64_t mine) const { return sum(counts() ? mine : 0); }

  // Calls `what` on one rank after the other, on the first one first.
  void in_turn(const std::function<void()>& what) const;
  // Calls `what` on the first rank, and then on all other ranks at once.
  void first_then_others(const std::function<void()>& what) const;

 private:
  int stage_rank() const { return mesh_ ? mesh_->coordinate("pipeline") : rank(); }

  std::optional<World> world_;
  std::optional<DeviceMesh> mesh_;  // with several ranks of a stage
  std::optional<int> rank_of_last_stage_;
  sharding::RankGroups groups_;  // the same
  models::TensorSplit tensor_;
  ShardLevel level_ = ShardLevel::None;
};

// The lines of a text, without their ends.
std::vector<std::string> lines_of(const std::string& text);

// The devices of this rank among those that a recipe names: one for each rank in their order, or
// one for all.
std::vector<Device> devices_of_rank(const std::vector<Device>& devices, const RunRanks& ranks);

// Throws UsageError on all ranks where one does not see the folder that rank 0 writes into: it
// would save its shards elsewhere, or resume from a copy of its own. `flag` is the one that names
// the folder, for the hint. All ranks call it.
void refuse_other_folders(const std::filesystem::path& folder, const RunRanks& ranks,
                          const char* flag);

}  // namespace trestle::train
