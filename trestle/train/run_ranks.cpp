#include "trestle/train/run_ranks.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <system_error>
#include <thread>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/train/mesh_options.h"

namespace trestle::train {

namespace {

// Some network file systems show the writes of another machine with a delay.
bool comes_to_hold(const std::filesystem::path& file, const std::string& words) {
  using namespace std::chrono_literals;
  constexpr int most = 40;
  for (int tries = 0; tries < most; ++tries) {
    std::ifstream in(file);
    std::string line;
    if (std::getline(in, line) && line == words) return true;
    std::this_thread::sleep_for(50ms);
  }
  return false;
}

ShardLevel level_of(const std::string& word) {
  for (const ShardLevel level : {ShardLevel::None, ShardLevel::OptimizerState,
                                 ShardLevel::Gradients, ShardLevel::Parameters})
    if (to_string(level) == word) return level;
  throw UsageError(text("there is no level '", word, "' in 'shard_level'"));
}

}  // namespace

RunRanks::RunRanks(const World* world) {
  if (world != nullptr && world->size() > 1) world_ = *world;
}

void RunRanks::lay_out(const recipe::Recipe::Mesh& mesh) {
  const auto pipeline = static_cast<int>(mesh.pipeline),
             parts = static_cast<int>(mesh.ranks_of_stage());
  const int per_replica = pipeline > 0 ? pipeline : std::max(1, size() / parts);
  check_mesh(mesh, size());
  if (parts == 1) return;
  std::vector<mesh::Dimension> dimensions = {{"pipeline", per_replica},
                                             {"replicate", static_cast<int>(mesh.replicate)}};
  if (mesh.shard > 1) dimensions.push_back({"shard", static_cast<int>(mesh.shard)});
  if (mesh.tensor > 1) dimensions.push_back({"tensor", static_cast<int>(mesh.tensor)});
  mesh_.emplace(*world_, dimensions);
  if (mesh.tensor > 1)
    // The recipes were compared, and all tensor ranks read the same examples.
    tensor_ = {
        .ranks = tensor_parallel::TensorRanks(mesh_->group("tensor").with_check(comm::Check::Off)),
        .sequence = mesh.sequence_parallel};
  if (mesh.shard > 1) level_ = level_of(mesh.shard_level);
  ShardOptions options{.level = level_};
  set_sharding(mesh, &options);
  groups_ = sharding::rank_groups(*mesh_, options);
}

std::int64_t RunRanks::examples_of(const data::Batch& batch, std::int64_t most,
                                   const data::Loader& loader) const {
  if (replicas() == 1) return batch.size();
  return std::min(most, loader.examples() - batch.index * most);
}

comm::Group RunRanks::pipeline_group() const {
  if (!mesh_) return group();
  return mesh_->size("pipeline") > 1 ? mesh_->group("pipeline") : comm::Group();
}

checkpoint::SaveRanks RunRanks::saving() const {
  if (alone()) return {};
  return {.rank = rank(), .size = size(), .all_gather = [group = group()](const std::string& mine) {
            return group.all_gather_bytes(mine);
          }};
}

std::optional<data::Part> RunRanks::reads() const {
  if (alone()) return data::Part::Both;
  if (is_first() && is_last()) return data::Part::Both;
  if (is_first()) return data::Part::Input;
  if (is_last()) return data::Part::Target;
  return std::nullopt;
}

std::string RunRanks::words() const {
  if (alone()) return "";
  const bool threads = world_->backend() == "threads";
  return text(size(), " ranks (", threads ? "threads" : "processes, " + world_->backend(), ")",
              mesh_ ? " · mesh " + mesh_->layout().to_text() : "",
              level_ == ShardLevel::None ? "" : text(" · shard level ", to_string(level_)));
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

std::vector<double> RunRanks::sum_of_last(std::vector<double> mine) const {
  if (alone()) return mine;
  at::Tensor numbers = at::tensor(mine, at::kDouble);
  if (!is_last() || tensor_.ranks.rank() > 0) numbers.zero_();
  group().all_reduce(numbers).wait();
  std::memcpy(mine.data(), numbers.const_data_ptr(), mine.size() * sizeof(double));
  return mine;
}

at::Tensor RunRanks::all_rows(const at::Tensor& own) const {
  std::optional<std::pair<at::ScalarType, std::vector<std::int64_t>>> mine;
  if (own.defined()) mine = {own.scalar_type(), own.sizes().vec()};
  at::Tensor rows = own;
  for (const auto& one : comm::all_gather_values(groups_.all, mine)) {
    if (rows.defined() || !one) continue;
    auto [type, sizes] = *one;
    sizes.at(0) = 0;
    rows = at::empty(sizes, type);
  }
  return at::cat(groups_.all.all_gather_uneven(rows.contiguous()));
}

std::string RunRanks::from_first(std::string mine) const {
  return alone() ? mine : group().broadcast_bytes(std::move(mine), 0);
}

std::vector<std::string> RunRanks::gather_lines(const std::vector<std::string>& mine) const {
  std::vector<std::string> all;
  for (auto& lines : gather(mine))
    for (std::string& line : lines) all.push_back(std::move(line));
  return all;
}

void RunRanks::in_turn(const std::function<void()>& what) const {
  for (int turn = 0; turn < size(); ++turn) {
    if (turn == rank()) what();
    if (!alone()) group().barrier();
  }
}

void RunRanks::first_then_others(const std::function<void()>& what) const {
  if (rank() == 0) what();
  if (alone()) return;
  group().barrier();
  if (rank() != 0) what();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<Device> devices_of_rank(const std::vector<Device>& devices, const RunRanks& ranks) {
  if (ranks.alone()) return devices;
  std::vector<Device> own = devices;
  if (devices.size() > 1) {
    check_device_count(std::ssize(devices), ranks.size());
    own = {devices[static_cast<std::size_t>(ranks.rank())]};
  }
  ranks.world().own_devices(own);
  return own;
}

void refuse_other_folders(const std::filesystem::path& folder, const RunRanks& ranks,
                          const char* flag) {
  if (ranks.alone()) return;
  const std::filesystem::path mark = folder / ".ranks";
  std::string words;  // others than those of an earlier run, or of a copy of this folder
  if (ranks.reports()) {
    words = text(std::random_device()(), " ", std::random_device()());
    write_file(mark, words);
  }
  const auto seen = ranks.gather(comes_to_hold(mark, ranks.from_first(words)) ? 1 : 0);
  std::error_code ignored;
  if (ranks.reports()) std::filesystem::remove(mark, ignored);
  for (std::size_t rank = 0; rank < seen.size(); ++rank)
    if (seen[rank] == 0)
      throw UsageError(
          text(folder.string(), ": rank ", rank, " does not see this folder as rank 0 does"),
          {.hint = text("All ranks save into one folder: give one, with ", flag,
                        ", on a file system that all machines see.")});
}

}  // namespace trestle::train
