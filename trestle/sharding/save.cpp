#include "trestle/sharding/save.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <optional>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/flat_shard.h"
#include "trestle/optim/state.h"
#include "trestle/sharding/save_steps.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointFolder;
using sharding::OwnPart;

constexpr const char* steps_name = "sharded_steps";
constexpr const char* forwards_name = "sharded_forwards";

constexpr char fine = '+', file_error = 'f', usage_error = 'u', state_error = 's',
               other_error = 'x';

[[noreturn]] void throw_as(char kind, const std::string& what) {
  if (kind == file_error) throw FileError(what);
  if (kind == usage_error) throw UsageError(what);
  if (kind == state_error) throw StateError(what);
  throw FormatError(what);
}

// Does this rank's work, and returns what all ranks' gave. Throws, on all ranks, what one threw.
std::vector<std::string> together(const comm::Group& ranks, const char* verb,
                                  const std::function<std::string()>& work) {
  std::string mine;
  std::exception_ptr error;
  const auto failed = [&](char kind, const std::exception& what) {
    error = std::current_exception();
    mine = kind + std::string(what.what());
  };
  try {
    mine = fine + work();
  } catch (const FileError& refused) {
    failed(file_error, refused);
  } catch (const UsageError& mistake) {
    failed(usage_error, mistake);
  } catch (const StateError& mistake) {
    failed(state_error, mistake);
  } catch (const std::exception& other) {
    failed(other_error, other);
  }
  std::vector<std::string> all = {mine};
  if (ranks.size() > 1) all = ranks.all_gather_bytes(mine);
  if (error) std::rethrow_exception(error);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank][0] != fine)
      throw_as(all[rank][0], text("rank ", ranks.ranks().at(rank), " could not ", verb, ": ",
                                  all[rank].substr(1)));
    all[rank].erase(0, 1);
  }
  return all;
}

// Reads what one rank has of a sharded model.
class Reader {
 public:
  Reader(const checkpoint::SavedTraining& saved, const Sharded& sharded)
      : saved_(saved), own_(sharded.own_parts()), trained_(sharded.named_parameters()) {
    for (const OwnPart& part : own_.parameters) parts_[part.name] = &part;
  }

  void check(checkpoint::SurplusTensors others) const {
    std::vector<checkpoint::StoredTensor> model;
    for (const OwnPart& part : own_.parameters)
      model.push_back({part.name, part.tensor.scalar_type(), part.shape});
    for (const auto& [name, tensor] : own_.buffers)
      model.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    saved_.check_weights(model, others);
  }

  void read_weights() const {
    std::vector<CheckpointFolder::Wanted> wanted;
    for (const OwnPart& part : own_.parameters) want(wanted, part, part.name, part.tensor.detach());
    for (const auto& [name, tensor] : own_.buffers) wanted.push_back({name, tensor});
    saved_.folder().read("weights", wanted);
  }

  void read_optimizer(torch::optim::Optimizer& optimizer) const {
    const auto names = optim::names_in(optimizer, trained_);
    const std::set<std::string> asked(names.begin(), names.end());
    std::vector<CheckpointFolder::Wanted> wanted;
    NamedTensors state;
    for (const auto& stored : saved_.folder().tensors("optimizer")) {
      const std::string parameter = stored.name.substr(0, stored.name.rfind('.'));
      if (!asked.contains(parameter)) continue;
      const OwnPart& part = *parts_.at(parameter);
      const auto options = part.tensor.options().requires_grad(false);
      if (stored.type == at::kLong && stored.shape.empty()) {  // a number
        state.emplace_back(stored.name, at::empty({}, at::kLong));
        wanted.push_back({stored.name, state.back().second});
        continue;
      }
      check_shape(stored, part);
      state.emplace_back(stored.name,
                         at::empty_like(part.tensor, options.dtype(stored.type).device(at::kCPU)));
      want(wanted, part, stored.name, state.back().second);
    }
    saved_.folder().read("optimizer", wanted);
    optim::load_optimizer_state(optimizer, names, state);
  }

  void read_gradients(Sharded& sharded) const {
    std::vector<CheckpointFolder::Wanted> wanted;
    std::vector<std::pair<at::Tensor, at::Tensor>> gradients;
    for (const auto& stored : saved_.folder().tensors("gradients")) {
      const auto found = parts_.find(stored.name);
      if (found == parts_.end() || !found->second->tensor.requires_grad()) continue;
      const OwnPart& part = *found->second;
      check_shape(stored, part);
      gradients.emplace_back(part.tensor, at::empty_like(part.tensor.detach()));
      want(wanted, part, stored.name, gradients.back().second);
    }
    saved_.folder().read("gradients", wanted);
    sharded.zero_grad();  // what is there belongs to other weights
    for (auto& [parameter, gradient] : gradients) parameter.mutable_grad() = gradient;
  }

 private:
  static void want(std::vector<CheckpointFolder::Wanted>& wanted, const OwnPart& part,
                   const std::string& name, const at::Tensor& into) {
    if (part.is_whole) {
      wanted.push_back({name, into});
      return;
    }
    for (const auto& box : checkpoint::boxes_of({name, into, part.begin, part.shape, part.strides}))
      wanted.push_back({name, box.tensor, box.offset});
  }

  void check_shape(const checkpoint::StoredTensor& stored, const OwnPart& part) const {
    if (stored.shape == part.shape) return;
    throw FormatError(text("'", stored.name, "' is [", join(stored.shape, ", "),
                           "], the parameter is [", join(part.shape, ", "), "]"),
                      {.file = saved_.folder().path().string()});
  }

  const checkpoint::SavedTraining& saved_;
  const sharding::OwnParts own_;
  const NamedTensors trained_;
  std::map<std::string, const OwnPart*> parts_;
};

std::int64_t take(checkpoint::TrainState& state, const char* name, std::int64_t otherwise) {
  const auto found = state.numbers.find(name);
  if (found == state.numbers.end()) return otherwise;
  const double value = found->second;
  state.numbers.erase(found);
  if (!(value >= 0 && value < 1e15))
    throw FormatError(text("where this training stood cannot be trusted: ", name, " is ", value));
  return static_cast<std::int64_t>(value);
}

checkpoint::TrainState load_with(const fs::path& folder, Sharded& sharded,
                                 torch::optim::Optimizer* optimizer,
                                 const ShardLoadOptions& options) {
  const comm::Group ranks = sharded.own_parts().ranks;
  checkpoint::TrainState state;
  ShardProgress progress;
  std::optional<checkpoint::SavedTraining> saved;
  std::optional<Reader> reader;
  const auto seen = together(ranks, "load", [&] {
    saved.emplace(folder);
    state = saved->state();
    progress.steps = take(state, steps_name, state.step);
    progress.forwards = take(state, forwards_name, 0);
    reader.emplace(*saved, sharded);
    reader->check(options.others);
    return saved->folder().state();
  });
  for (std::size_t rank = 1; rank < seen.size(); ++rank)
    if (seen[rank] != seen[0])
      throw FormatError(text("rank ", ranks.ranks().at(rank), " sees another checkpoint than rank ",
                             ranks.ranks().at(0)),
                        {.file = folder.string(),
                         .hint = "All ranks load from one folder, on a file system that each of "
                                 "them sees."});
  together(ranks, "load", [&] {
    const at::NoGradGuard no_grad;
    if (optimizer) reader->read_optimizer(*optimizer);
    reader->read_weights();
    reader->read_gradients(sharded);
    return std::string();
  });
  sharded.shards_changed();
  sharded.set_progress(progress);
  return state;
}

}  // namespace

sharding::SaveStep sharding::prepare_save(const Sharded& sharded,
                                          const torch::optim::Optimizer* optimizer,
                                          checkpoint::TrainState state,
                                          const SaveOptions& options) {
  const ShardProgress progress = sharded.progress();
  state.numbers[steps_name] = static_cast<double>(progress.steps);
  state.numbers[forwards_name] = static_cast<double>(progress.forwards);
  SaveStep step{.groups = {}, .state = std::move(state)};
  together(sharded.own_parts().ranks, "save", [&] {
    step.groups = groups_to_save(sharded, optimizer, options);
    return std::string();
  });
  return step;
}

void sharding::write_save(const fs::path& folder, const SaveStep& step, const comm::Group& ranks) {
  checkpoint::SaveRanks saving;
  if (ranks.size() > 1)
    saving = {.rank = ranks.rank(),
              .size = ranks.size(),
              .all_gather = [&](const std::string& mine) { return ranks.all_gather_bytes(mine); }};
  checkpoint::write_training_checkpoint(folder, step.groups, step.state, saving);
}

void sharding::load_saved(const checkpoint::SavedTraining& saved, Sharded& sharded,
                          torch::optim::Optimizer* optimizer, checkpoint::SurplusTensors others) {
  const at::NoGradGuard no_grad;
  const Reader reader(saved, sharded);
  reader.check(others);
  if (optimizer) reader.read_optimizer(*optimizer);
  reader.read_weights();
  reader.read_gradients(sharded);
  sharded.shards_changed();
}

void save(const fs::path& folder, const Sharded& sharded, const torch::optim::Optimizer& optimizer,
          const checkpoint::TrainState& state, const SaveOptions& options) {
  sharding::write_save(folder, sharding::prepare_save(sharded, &optimizer, state, options),
                       sharded.own_parts().ranks);
}

void save(const fs::path& folder, const Sharded& sharded, const checkpoint::TrainState& state,
          const SaveOptions& options) {
  sharding::write_save(folder, sharding::prepare_save(sharded, nullptr, state, options),
                       sharded.own_parts().ranks);
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
