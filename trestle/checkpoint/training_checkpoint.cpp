#include "trestle/checkpoint/training_checkpoint.h"

#include <algorithm>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/checkpoint_index.h"

namespace trestle::checkpoint {

namespace {

namespace fs = std::filesystem;

std::vector<TensorPart> whole(const NamedTensors& tensors) {
  std::vector<TensorPart> parts;
  for (const auto& [name, tensor] : tensors) parts.push_back({name, tensor});
  return parts;
}

TrainState state_in(const CheckpointFolder& folder) {
  const fs::path index = folder.path() / index_name;
  return parse_state(folder.state(),
                     (fs::exists(index) ? index : folder.path() / state_name).string());
}

// Those of a group that belong to these parameters, by what `parameter_of` makes of their names.
template <class ParameterOf>
NamedTensors of_parameters(const CheckpointFolder& folder, const std::string& group,
                           const std::vector<std::string>& parameters, ParameterOf parameter_of) {
  const std::set<std::string> asked(parameters.begin(), parameters.end());
  std::vector<std::string> names;
  for (const StoredTensor& tensor : folder.tensors(group))
    if (asked.contains(parameter_of(tensor.name))) names.push_back(tensor.name);
  return folder.read(group, names);
}

}  // namespace

void write_training_checkpoint(const fs::path& folder, const TrainingCheckpoint& resume,
                               const SaveRanks& ranks) {
  TensorGroups groups = {{"weights", whole(resume.weights)},
                         {"optimizer", whole(resume.optimizer)}};
  if (!resume.gradients.empty()) groups["gradients"] = whole(resume.gradients);
  const TrainState& state = resume.state;
  write_checkpoint(folder, groups, format_state(state), ranks,
                   text("step ", state.step, ", epoch ", state.epoch, ", sample ", state.samples,
                        ", seed ", state.seed, ", recipe ", state.recipe_hash));
}

SavedTraining::SavedTraining(const fs::path& folder) : folder_(folder), state_(state_in(folder_)) {}

void SavedTraining::copy_weights(const NamedTensors& into, Others others) const {
  std::set<std::string> names;
  std::vector<CheckpointFolder::Wanted> wanted;
  for (const auto& [name, tensor] : into) {
    names.insert(name);
    wanted.push_back({name, tensor});
  }
  std::vector<std::string> left;
  for (const StoredTensor& tensor : folder_.tensors("weights"))
    if (!names.contains(tensor.name)) left.push_back(text("'", tensor.name, "'"));
  if (others == Others::Refused && !left.empty()) {
    const std::size_t count = left.size();
    if (count > 5) left.resize(5);
    throw FormatError(
        text("these weights are not this model's, which has not ", join(left, ", "),
             count > 5 ? text(", ... (", count, ")") : ""),
        {.file = folder_.path().string(), .hint = "Use the recipe that was saved beside them."});
  }
  folder_.read("weights", wanted);
}

NamedTensors SavedTraining::optimizer(const std::vector<std::string>& parameters) const {
  return of_parameters(folder_, "optimizer", parameters, [](const std::string& name) {
    return name.substr(0, std::min(name.rfind('.'), name.size()));
  });
}

NamedTensors SavedTraining::gradients(const std::vector<std::string>& parameters) const {
  return of_parameters(folder_, "gradients", parameters,
                       [](const std::string& name) { return name; });
}

TrainState read_train_state(const fs::path& folder) { return state_in(CheckpointFolder(folder)); }

TrainingCheckpoint read_training_checkpoint(const fs::path& folder) {
  const SavedTraining saved(folder);
  const CheckpointFolder& in = saved.folder();
  return {in.read("weights"), in.read("optimizer"), in.read("gradients"), saved.state()};
}

}  // namespace trestle::checkpoint
