#include "trestle/sharding/save/save.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/flat_shard.h"
#include "trestle/comm/gather.h"
#include "trestle/comm/purpose.h"
#include "trestle/optim/state.h"
#include "trestle/sharding/engine/shard_engine.h"
#include "trestle/sharding/save/local_shards.h"
#include "trestle/sharding/save/prepared_save.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointFolder;
using sharding::LocalShard;
using sharding::ShardEngine;

constexpr const char* steps_name = "sharded_steps";
constexpr const char* forwards_name = "sharded_forwards";

constexpr char succeeded = '+', file_error = 'f', usage_error = 'u', state_error = 's',
               other_error = 'x';

[[noreturn]] void throw_as(char kind, const std::string& what) {
  if (kind == file_error) throw FileError(what);
  if (kind == usage_error) throw UsageError(what);
  if (kind == state_error) throw StateError(what);
  throw FormatError(what);
}

// Runs `work` on each rank and returns all ranks' results. An error of one rank is thrown on all.
std::vector<std::string> run_on_all_ranks(const comm::Group& ranks, const char* verb,
                                          const std::function<std::string()>& work) {
  std::pair<char, std::string> mine;  // the kind of its end, and the result or the message
  std::exception_ptr error;
  const auto failed = [&](char kind, const std::exception& what) {
    error = std::current_exception();
    mine = {kind, what.what()};
  };
  try {
    mine = {succeeded, work()};
  } catch (const FileError& refused) {
    failed(file_error, refused);
  } catch (const UsageError& mistake) {
    failed(usage_error, mistake);
  } catch (const StateError& mistake) {
    failed(state_error, mistake);
  } catch (const std::exception& other) {
    failed(other_error, other);
  }
  std::vector<std::pair<char, std::string>> all = {mine};
  if (ranks.size() > 1)
    all = comm::with_purpose([] { return "while the ranks compared whether their part succeeded"; },
                             [&] { return comm::all_gather_values(ranks, mine); });
  if (error) std::rethrow_exception(error);
  std::vector<std::string> results;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    auto& [kind, result] = all[rank];
    if (kind != succeeded)
      throw_as(kind, text("rank ", ranks.ranks().at(rank), " could not ", verb, ": ", result));
    results.push_back(std::move(result));
  }
  return results;
}

// Reads one rank's shards from a checkpoint.
class ShardReader {
 public:
  ShardReader(const checkpoint::SavedTraining& saved, const ShardEngine& engine)
      : saved_(saved), own_(sharding::local_shards(engine)), trained_(engine.stepped()) {
    for (const LocalShard& shard : own_.parameters) shards_[shard.name] = &shard;
  }

  void check(checkpoint::SurplusTensors others) const {
    std::vector<checkpoint::StoredTensor> model;
    for (const LocalShard& shard : own_.parameters)
      model.push_back({shard.name, shard.tensor.scalar_type(), shard.shape});
    for (const auto& [name, tensor] : own_.buffers)
      model.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    saved_.check_weights(model, others);
  }

  // Reads and checks everything. Nothing is changed.
  void stage(const torch::optim::Optimizer* optimizer) {
    stage_weights();
    if (optimizer) stage_optimizer(*optimizer);
    stage_gradients();
  }

  // Replaces the optimizer's state. Throws for an unknown field, and changes nothing then.
  void write_optimizer(torch::optim::Optimizer& optimizer) const {
    optim::load_optimizer_state(optimizer, names_, state_);
  }

  void write_model(ShardEngine& engine) {
    weights_.write();
    engine.zero_grad();  // the old gradients belong to the old weights
    for (auto& [parameter, gradient] : gradients_) parameter.mutable_grad() = gradient;
  }

 private:
  void stage_weights() {
    std::vector<CheckpointFolder::Wanted> wanted;
    for (const LocalShard& shard : own_.parameters)
      want(wanted, shard, shard.name, shard.tensor.detach());
    for (const auto& [name, tensor] : own_.buffers) wanted.push_back({name, tensor});
    weights_ = saved_.folder().stage("weights", wanted);
  }

  void stage_optimizer(const torch::optim::Optimizer& optimizer) {
    names_ = optim::names_in(optimizer, trained_);
    const std::set<std::string> asked(names_.begin(), names_.end());
    std::vector<CheckpointFolder::Wanted> wanted;
    for (const auto& stored : saved_.folder().tensors("optimizer")) {
      const std::string parameter = stored.name.substr(0, stored.name.rfind('.'));
      if (!asked.contains(parameter)) continue;
      const LocalShard& shard = *shards_.at(parameter);
      const auto options = shard.tensor.options().requires_grad(false);
      if (stored.type == at::kLong && stored.shape.empty()) {  // the number of steps
        state_.emplace_back(stored.name, at::empty({}, at::kLong));
        wanted.push_back({stored.name, state_.back().second});
        continue;
      }
      check_stored_shape(stored, shard);
      state_.emplace_back(
          stored.name, at::empty_like(shard.tensor, options.dtype(stored.type).device(at::kCPU)));
      want(wanted, shard, stored.name, state_.back().second);
    }
    saved_.folder().read("optimizer", wanted);
  }

  void stage_gradients() {
    std::vector<CheckpointFolder::Wanted> wanted;
    for (const auto& stored : saved_.folder().tensors("gradients")) {
      const auto found = shards_.find(stored.name);
      if (found == shards_.end() || !found->second->tensor.requires_grad()) continue;
      const LocalShard& shard = *found->second;
      check_stored_shape(stored, shard);
      gradients_.emplace_back(shard.tensor, at::empty_like(shard.tensor.detach()));
      want(wanted, shard, stored.name, gradients_.back().second);
    }
    saved_.folder().read("gradients", wanted);
  }

  static void want(std::vector<CheckpointFolder::Wanted>& wanted, const LocalShard& shard,
                   const std::string& name, const at::Tensor& into) {
    if (shard.is_whole) {
      wanted.push_back({name, into});
      return;
    }
    for (const auto& box :
         checkpoint::boxes_of({name, into, shard.begin, shard.shape, shard.strides}))
      wanted.push_back({name, box.tensor, box.offset});
  }

  void check_stored_shape(const checkpoint::StoredTensor& stored, const LocalShard& shard) const {
    if (stored.shape == shard.shape) return;
    throw FormatError(text("'", stored.name, "' is [", join(stored.shape, ", "),
                           "], the parameter is [", join(shard.shape, ", "), "]"),
                      {.file = saved_.folder().path().string()});
  }

  const checkpoint::SavedTraining& saved_;
  const sharding::LocalShards own_;
  const NamedTensors trained_;
  std::map<std::string, const LocalShard*> shards_;

  checkpoint::StagedTensors weights_;
  std::vector<std::string> names_;  // of the optimizer's parameters
  NamedTensors state_;
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;  // parameter and gradient
};

std::int64_t take_number(checkpoint::TrainState& state, const char* name, std::int64_t otherwise) {
  const auto found = state.numbers.find(name);
  if (found == state.numbers.end()) return otherwise;
  const double value = found->second;
  state.numbers.erase(found);
  if (!(value >= 0 && value < 1e15))
    throw FormatError(
        text("the training's place in the checkpoint is damaged: ", name, " is ", value));
  return static_cast<std::int64_t>(value);
}

checkpoint::TrainState load_with(const fs::path& folder, Sharded& sharded,
                                 torch::optim::Optimizer* optimizer,
                                 const ShardLoadOptions& options) {
  ShardEngine& engine = sharded.engine_outside_of_join("load()");
  const comm::Group ranks = engine.ranks().all;
  checkpoint::TrainState state;
  ShardProgress progress;
  std::optional<checkpoint::SavedTraining> saved;
  std::optional<ShardReader> reader;
  const auto seen = run_on_all_ranks(ranks, "load", [&] {
    saved.emplace(folder);
    state = saved->state();
    progress.steps = take_number(state, steps_name, state.step);
    progress.forwards = take_number(state, forwards_name, 0);
    reader.emplace(*saved, engine);
    reader->check(options.others);
    const at::NoGradGuard no_grad;
    reader->stage(optimizer);
    return saved->folder().state();
  });
  for (std::size_t rank = 1; rank < seen.size(); ++rank)
    if (seen[rank] != seen[0])
      throw FormatError(text("rank ", ranks.ranks().at(rank),
                             " reads another checkpoint than rank ", ranks.ranks().at(0)),
                        {.file = folder.string(),
                         .hint = "All ranks must load from one folder, on a shared file system."});
  const at::NoGradGuard no_grad;
  run_on_all_ranks(ranks, "load", [&] {
    if (optimizer) reader->write_optimizer(*optimizer);
    return std::string();
  });
  reader->write_model(engine);
  engine.shards_changed();
  sharded.set_progress(progress);
  return state;
}

}  // namespace

sharding::PreparedSave sharding::prepare_save(const Sharded& sharded,
                                              const torch::optim::Optimizer* optimizer,
                                              checkpoint::TrainState state,
                                              const SaveOptions& options) {
  const ShardProgress progress = sharded.progress();
  state.numbers[steps_name] = static_cast<double>(progress.steps);
  state.numbers[forwards_name] = static_cast<double>(progress.forwards);
  PreparedSave prepared{.groups = {}, .state = std::move(state)};
  const ShardEngine& engine = sharded.engine_outside_of_join("save()");
  run_on_all_ranks(engine.ranks().all, "save", [&] {
    prepared.groups = groups_to_save(sharded, optimizer, options);
    return std::string();
  });
  return prepared;
}

void sharding::write_save(const fs::path& folder, const PreparedSave& save,
                          const comm::Group& ranks) {
  checkpoint::SaveRanks saving;
  if (ranks.size() > 1)
    saving = {.rank = ranks.rank(),
              .size = ranks.size(),
              .all_gather = [&](const std::string& mine) { return ranks.all_gather_bytes(mine); }};
  checkpoint::write_training_checkpoint(folder, save.groups, save.state, saving);
}

std::function<void()> sharding::stage_load(const checkpoint::SavedTraining& saved,
                                           ShardedParameters& sharded,
                                           torch::optim::Optimizer* optimizer,
                                           checkpoint::SurplusTensors others) {
  const at::NoGradGuard no_grad;
  ShardEngine& engine = sharded.engine();
  const auto reader = std::make_shared<ShardReader>(saved, engine);
  reader->check(others);
  reader->stage(optimizer);
  return [reader, &engine, optimizer] {
    const at::NoGradGuard no_grad;
    if (optimizer) reader->write_optimizer(*optimizer);
    reader->write_model(engine);
    engine.shards_changed();
  };
}

void save(const fs::path& folder, const Sharded& sharded, const torch::optim::Optimizer& optimizer,
          const checkpoint::TrainState& state, const SaveOptions& options) {
  sharding::write_save(folder, sharding::prepare_save(sharded, &optimizer, state, options),
                       sharded.engine().ranks().all);
}

void save(const fs::path& folder, const Sharded& sharded, const checkpoint::TrainState& state,
          const SaveOptions& options) {
  sharding::write_save(folder, sharding::prepare_save(sharded, nullptr, state, options),
                       sharded.engine().ranks().all);
}

checkpoint::TrainState load(const fs::path& folder, Sharded& sharded,
                            torch::optim::Optimizer& optimizer, const ShardLoadOptions& options) {
  return load_with(folder, sharded, &optimizer, options);
}

checkpoint::TrainState load(const fs::path& folder, Sharded& sharded,
                            const ShardLoadOptions& options) {
  return load_with(folder, sharded, nullptr, options);
}

}  // namespace trestle
