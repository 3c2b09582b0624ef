#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trestle/checkpoint/files/save_ranks.h"
#include "trestle/comm/world.h"
#include "trestle/data/dataset.h"
#include "trestle/data/loader.h"
#include "trestle/device/device.h"
#include "trestle/mesh/device_mesh.h"
#include "trestle/nn/metrics.h"
#include "trestle/recipe/recipe.h"
#include "trestle/sharding/rank_groups.h"

// The ranks that a run is on. Inside of the trainer. Not installed.
namespace trestle::train {

// One process alone by default: then nothing is sent. All ranks call the same of these, in the same
// order.
class RunRanks {
 public:
  RunRanks() = default;
  explicit RunRanks(const World* world);

  // As [mesh] says: pipelines of so many ranks, and so many of them, of which some divide their state. Throws UsageError where there are not as many ranks.
  // All ranks call it.
  void lay_out(const recipe::Recipe::Mesh& mesh);

  bool alone() const { return !world_; }
  int rank() const { return world_ ? world_->rank() : 0; }
  int size() const { return world_ ? world_->size() : 1; }
  // One rank shows the bar and writes metrics, pictures and logs.
  bool reports() const { return rank() == 0; }
  // The first stage takes the inputs, the last one has the outputs and takes the targets.
  bool is_first() const { return stage_rank() == 0; }
  bool is_last() const { return stage_rank() + 1 == size() / replicas(); }
  // Of the pipelines that take parts of each batch: how many there are, and which one this rank is in.
  int replicas() const { return mesh_ ? groups_.all.size() : 1; }
  int replica() const { return mesh_ ? groups_.all.rank() : 0; }
  // What of them is divided over the ranks of [mesh] shard.
  ShardLevel level() const { return level_; }
  data::Share share() const { return {.part = replica(), .parts = replicas()}; }
  // How many of a batch's examples are this replica's (data/loader.h).
  std::int64_t share_of(std::int64_t examples) const {
    return examples * (replica() + 1) / replicas() - examples * replica() / replicas();
  }
  // Examples of a batch, of all replicas together; `most` in each batch of `loader` but its last.
  std::int64_t examples_of(const data::Batch& batch, std::int64_t most,
                           const data::Loader& loader) const;
  comm::Group pipeline_group() const;  // not valid where one rank has the whole pipeline
  // The ranks that have the same stages, in all pipelines; not valid where there is one.
  const sharding::RankGroups& replica_groups() const { return groups_; }
  const DeviceMesh& mesh() const { return *mesh_; }  // where there are several pipelines
  // Of the data; nothing on the ranks between.
  std::optional<data::Part> reads() const;
  const World& world() const { return *world_; }
  comm::Group group() const { return world_ ? world_->group() : comm::Group(); }
  checkpoint::SaveRanks saving() const;

  // "4 ranks (threads)"; empty alone.
  std::string words() const;

  // Is it so on any rank?
  bool any(bool mine) const;
  // The same on all ranks: the sum over the pipelines' last ones.
  std::vector<double> sum_of_last(std::vector<double> mine) const;
  // All replicas' rows of dimension 0, in their order, on the CPU. One that has none gives None. The ranks that have the same
  // stages call it.
  at::Tensor all_rows(const at::Tensor& own) const;
  std::string from_first(std::string mine) const;
  std::vector<std::string> gather(const std::string& mine) const;
  // The lines of all ranks as one list, in the order of the ranks.
  std::vector<std::string> gather_lines(const std::vector<std::string>& mine) const;
  std::int64_t sum(std::int64_t mine) const;
  // Over the ranks of one pipeline, where all pipelines have the same.
  std::int64_t sum_of_pipeline(std::int64_t mine) const { return sum(replica() == 0 ? mine : 0); }

  // One rank after the other, the first one first: for what may be done once for all of them.
  void in_turn(const std::function<void()>& what) const;
  // The first one alone, then all others together.
  void first_then_others(const std::function<void()>& what) const;

 private:
  int stage_rank() const { return mesh_ ? mesh_->coordinate("pipeline") : rank(); }

  std::optional<World> world_;
  std::optional<DeviceMesh> mesh_;  // where there are replicas
  sharding::RankGroups groups_;     // the same
  ShardLevel level_ = ShardLevel::None;
};

// The lines of a text, without their ends.
std::vector<std::string> lines_of(const std::string& text);

// Of the devices that a recipe names, in their order: one for each rank, or one for all.
std::vector<Device> devices_of_rank(const std::vector<Device>& devices, const RunRanks& ranks);

// UsageError, on all ranks, where one does not see the folder that rank 0 writes into: each would save
// its part where no other finds it, or go on from a copy of its own. All ranks call it.
void refuse_other_folders(const std::filesystem::path& folder, const RunRanks& ranks);

}  // namespace trestle::train
