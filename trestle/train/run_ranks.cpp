#include "trestle/train/run_ranks.h"

#include <ATen/Functions.h>

#include <cstring>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::train {

RunRanks::RunRanks(const World* world) {
  if (world != nullptr && world->size() > 1) world_ = *world;
}

checkpoint::SaveRanks RunRanks::saving() const {
  if (alone()) return {};
  return {.rank = rank(), .size = size(), .all_gather = [group = group()](const std::string& mine) {
            return group.all_gather_bytes(mine);
          }};
}

std::optional<data::Part> RunRanks::reads() const {
  if (alone()) return data::Part::Both;
  if (is_first()) return data::Part::Input;
  if (is_last()) return data::Part::Target;
  return std::nullopt;
}

std::string RunRanks::words() const {
  if (alone()) return "";
  const bool threads = world_->backend() == "threads";
  return threads ? text(size(), " ranks (threads)")
                 : text(size(), " ranks (processes, ", world_->backend(), ")");
}

bool RunRanks::any(bool mine) const {
  if (alone()) return mine;
  at::Tensor flag = at::full({1}, mine ? 1 : 0, at::kLong);
  group().all_reduce(flag, comm::Reduce::Max).wait();
  return flag.item<std::int64_t>() != 0;
}

std::int64_t RunRanks::sum(std::int64_t mine) const {
  if (alone()) return mine;
  at::Tensor number = at::full({1}, mine, at::kLong);
  group().all_reduce(number).wait();
  return number.item<std::int64_t>();
}

std::vector<double> RunRanks::from_last(std::vector<double> mine) const {
  if (alone()) return mine;
  at::Tensor numbers = at::tensor(mine, at::kDouble);
  group().broadcast(numbers, size() - 1).wait();
  std::memcpy(mine.data(), numbers.const_data_ptr(), mine.size() * sizeof(double));
  return mine;
}

std::string RunRanks::from_first(std::string mine) const {
  return alone() ? mine : group().broadcast_bytes(std::move(mine), 0);
}

std::vector<std::string> RunRanks::gather(const std::string& mine) const {
  return alone() ? std::vector<std::string>{mine} : group().all_gather_bytes(mine);
}

void RunRanks::in_turn(const std::function<void()>& what) const {
  for (int turn = 0; turn < size(); ++turn) {
    if (turn == rank()) what();
    if (!alone()) group().barrier();
  }
}

void RunRanks::first_then_others(const std::function<void()>& what) const {
  if (is_first()) what();
  if (alone()) return;
  group().barrier();
  if (!is_first()) what();
}

std::vector<Device> devices_of_rank(const std::vector<Device>& devices, const RunRanks& ranks) {
  if (ranks.alone()) return devices;
  std::vector<Device> own = devices;
  if (devices.size() > 1) {
    if (devices.size() != static_cast<std::size_t>(ranks.size()))
      throw UsageError(
          text(devices.size(), " devices are given for ", ranks.size(), " ranks"),
          {.hint = text("Each rank has one: give --devices ", ranks.size(),
                        " of them, for example virtual:", ranks.size(), ", or one cpu for all.")});
    own = {devices[static_cast<std::size_t>(ranks.rank())]};
  }
  ranks.world().own_devices(own);
  return own;
}

}  // namespace trestle::train
