#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trestle/checkpoint/files/save_ranks.h"
#include "trestle/comm/world.h"
#include "trestle/data/dataset.h"
#include "trestle/device/device.h"
#include "trestle/nn/metrics.h"

// The ranks that a run is on. Inside of the trainer. Not installed.
namespace trestle::train {

// One process alone by default: then nothing is sent. All ranks call the same of these, in the same
// order.
class RunRanks {
 public:
  RunRanks() = default;
  explicit RunRanks(const World* world);

  bool alone() const { return !world_; }
  int rank() const { return world_ ? world_->rank() : 0; }
  int size() const { return world_ ? world_->size() : 1; }
  // One rank shows the bar and writes metrics, pictures and logs.
  bool reports() const { return rank() == 0; }
  // The first stage takes the inputs, the last one has the outputs and takes the targets.
  bool is_first() const { return rank() == 0; }
  bool is_last() const { return rank() + 1 == size(); }
  // Of the data; nothing on the ranks between.
  std::optional<data::Part> reads() const;
  const World& world() const { return *world_; }
  comm::Group group() const { return world_ ? world_->group() : comm::Group(); }
  checkpoint::SaveRanks saving() const;

  // "4 ranks (threads)"; empty alone.
  std::string words() const;

  // Is it so on any rank?
  bool any(bool mine) const;
  // The same on all ranks: the last one's.
  std::vector<double> from_last(std::vector<double> mine) const;
  std::string from_first(std::string mine) const;
  std::vector<std::string> gather(const std::string& mine) const;
  std::int64_t sum(std::int64_t mine) const;

  // One rank after the other, the first one first: for what may be done once for all of them.
  void in_turn(const std::function<void()>& what) const;
  // The first one alone, then all others together.
  void first_then_others(const std::function<void()>& what) const;

 private:
  std::optional<World> world_;
};

// Of the devices that a recipe names, in their order: one for each rank, or one for all.
std::vector<Device> devices_of_rank(const std::vector<Device>& devices, const RunRanks& ranks);

// UsageError, on all ranks, where one does not see the folder that rank 0 writes into: each would save
// its part where no other finds it, or go on from a copy of its own. All ranks call it.
void refuse_other_folders(const std::filesystem::path& folder, const RunRanks& ranks);

}  // namespace trestle::train
