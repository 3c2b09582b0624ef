#include "trestle/checkpoint/training_checkpoint.h"

#include <algorithm>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/checkpoint_index.h"

namespace trestle::checkpoint {

namespace {

namespace fs = std::filesystem;

std::vector<TensorShard> whole(const NamedTensors& tensors) {
  std::vector<TensorShard> shards;
  for (const auto& [name, tensor] : tensors) shards.push_back({name, tensor});
  return shards;
}

TrainState state_in(const CheckpointFolder& folder) {
  const fs::path index = folder.path() / index_name;
  return parse_state(folder.state(),
                     (fs::exists(index) ? index : folder.path() / state_name).string());
}

// The tensors of a group that belong to these parameters; `parameter_of` maps a name to its
// parameter.
template <class ParameterOf>
NamedTensors of_parameters(const CheckpointFolder& folder, const std::string& group,
                           const std::vector<std::string>& parameters, ParameterOf parameter_of) {
  const std::set<std::string> wanted(parameters.begin(), parameters.end());
  std::vector<std::string> names;
  for (const StoredTensor& tensor : folder.tensors(group))
    if (wanted.contains(parameter_of(tensor.name))) names.push_back(tensor.name);
  return folder.read(group, names);
}

std::string in_words(const StoredTensor& tensor) {
  return text(c10::toString(tensor.type), " [", join(tensor.shape, ", "), "]");
}

// Shortens a list to its first five items.
std::string first_of(std::vector<std::string> all) {
  const std::size_t count = all.size();
  if (count > 5) all.resize(5);
  return text(join(all, ", "), count > 5 ? text(", ... (", count, ")") : "");
}

}  // namespace

void write_training_checkpoint(const fs::path& folder, const TrainingCheckpoint& resume,
                               const SaveRanks& ranks, const PaddedRows& padding,
                               const RankSlices& slices) {
  TensorGroups groups = {{"weights", whole(resume.weights)},
                         {"optimizer", whole(resume.optimizer)}};
  if (!resume.gradients.empty()) groups["gradients"] = whole(resume.gradients);
  write_training_checkpoint(folder, groups, resume.state, ranks, padding, slices);
}

void write_training_checkpoint(const fs::path& folder, const TensorGroups& groups,
                               const TrainState& state, const SaveRanks& ranks,
                               const PaddedRows& padding, const RankSlices& slices) {
  write_checkpoint(folder, without_padding(in_whole_tensors(groups, slices), padding),
                   format_state(state), ranks,
                   text("step ", state.step, ", epoch ", state.epoch, ", sample ", state.samples,
                        ", seed ", state.seed, ", recipe ", state.recipe_hash));
}

SavedTraining::SavedTraining(const fs::path& folder, const PaddedRows& padding,
                             const nn::ParameterSlices& slices)
    : folder_(folder, padding, slices), state_(state_in(folder_)) {}

void SavedTraining::copy_weights(const NamedTensors& into, SurplusTensors surplus) const {
  stage_weights(into, surplus).write();
}

StagedTensors SavedTraining::stage_weights(const NamedTensors& into, SurplusTensors surplus) const {
  std::vector<StoredTensor> model;
  std::vector<CheckpointFolder::Wanted> wanted;
  for (const auto& [name, tensor] : into) {
    model.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    wanted.push_back({name, tensor});
  }
  check_weights(model, surplus);
  return folder_.stage("weights", wanted);
}

void SavedTraining::check_weights(const std::vector<StoredTensor>& model,
                                  SurplusTensors surplus) const {
  const auto& saved = folder_.tensors("weights");
  std::map<std::string, const StoredTensor*> known;
  std::set<std::string> names;
  for (const StoredTensor& tensor : saved) known[tensor.name] = &tensor;
  for (const StoredTensor& tensor : model) names.insert(tensor.name);
  std::vector<std::string> unknown;
  for (const StoredTensor& tensor : saved)
    if (!names.contains(tensor.name)) unknown.push_back(text("'", tensor.name, "'"));
  if (surplus == SurplusTensors::Refused && !unknown.empty()) {
    throw FormatError(
        text("these weights do not match the model, which does not have ", first_of(unknown)),
        {.file = folder_.path().string(), .hint = "Use the recipe saved in the same folder."});
  }
  const auto is_converted = [&](at::ScalarType from, at::ScalarType to) {
    return folder_.is_foreign() && at::isFloatingType(from) && at::isFloatingType(to);
  };
  std::vector<std::string> differences;
  for (const StoredTensor& tensor : model) {
    const auto found = known.find(tensor.name);
    if (found == known.end()) {
      differences.push_back(text("'", tensor.name, "' is missing"));
    } else if (found->second->shape != tensor.shape ||
               (found->second->type != tensor.type &&
                !is_converted(found->second->type, tensor.type))) {
      differences.push_back(text("'", tensor.name, "' is ", in_words(*found->second),
                                 ", but the model's is ", in_words(tensor)));
    }
  }
  if (differences.empty()) return;
  throw FormatError(
      text("its weights do not match the model, ", differences.size(),
           differences.size() == 1 ? " difference: " : " differences: ", first_of(differences)),
      {.file = folder_.path().string()});
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
