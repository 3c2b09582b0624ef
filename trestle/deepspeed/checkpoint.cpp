// Checkpoints under DeepSpeed's tags.
#include <map>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"
#include "trestle/deepspeed/deepspeed.h"
#include "trestle/deepspeed/folder.h"
#include "trestle/sharding/save/save.h"

namespace trestle::deepspeed {
namespace {

constexpr auto latest = "latest";
constexpr std::string_view client_prefix = "client.";
constexpr auto own_ending = ".trestle";

void check_tag(const std::string& tag, const World& world) {
  if (const auto differs = comm::find_difference(world.group(), tag))
    throw UsageError(text("the tag of a checkpoint is '", differs->first, "' on rank 0 and '",
                          differs->other, "' on rank ", differs->rank));
  if (tag.empty() || tag == "." || tag == ".." || tag == latest ||
      tag.find('/') != std::string::npos || tag.find('\n') != std::string::npos)
    throw UsageError(text("'", tag, "' cannot be the tag of a checkpoint"),
                     {.hint = "A tag is the name of a folder, such as global_step100."});
}

}  // namespace

// All ranks come to the same result.
void Engine::refuse_deepspeeds_form() const {
  const auto refuse = [](const std::string& why) {
    throw UsageError(text("DeepSpeed's form of a checkpoint ", why),
                     {.hint = "Save in trestle's own form instead: CheckpointForm::Trestle."});
  };
  if (micro_steps_ % config_.accumulate != 0) refuse("in the middle of a batch");
  if (fp16_enabled()) refuse("with fp16, whose scaler it would have to hold");
  if (config_.shard_ranks != 0) refuse("with mics_shard_size");
  const NamedTensors stepped = sharded_.named_parameters();
  std::set<std::string> names;
  const auto refuse_frozen = [&](const std::string& name, const at::Tensor& parameter) {
    if (!parameter.requires_grad())
      refuse(text("with the parameter '", name, "', which was frozen after initialize()"));
  };
  for (const auto& [name, parameter] : stepped) {
    names.insert(name);
    refuse_frozen(name, parameter);
  }
  for (const auto& [name, parameter] : parameters_)
    if (names.contains(name)) refuse_frozen(name, parameter);
  optimizer_values(*optimizer_);
}

std::vector<checkpoint::DeepspeedParameter> Engine::parameters_in_python() const {
  std::set<std::string> stepped;
  for (const auto& [name, parameter] : sharded_.named_parameters()) stepped.insert(name);
  std::map<const void*, std::string> seen;
  std::vector<checkpoint::DeepspeedParameter> all;
  for (const auto& [name, parameter] : parameters_) {
    const auto [first, is_new] = seen.try_emplace(parameter.unsafeGetTensorImpl(), name);
    all.push_back({.name = name,
                   .frozen = !stepped.contains(first->second),
                   .same_as = is_new ? "" : first->second});
  }
  return all;
}

std::vector<checkpoint::DeepspeedGroup> Engine::groups_in_python() const {
  std::vector<checkpoint::DeepspeedGroup> all;
  for (auto& values : optimizer_values(*optimizer_)) all.push_back({.values = std::move(values)});
  std::map<const void*, std::string> names;
  for (const auto& [name, parameter] : sharded_.named_parameters())
    names[parameter.unsafeGetTensorImpl()] = name;
  for (std::size_t group = 0; group < all.size(); ++group)
    for (const at::Tensor& parameter : optimizer_->param_groups()[group].params())
      all[group].parameters.push_back(names.at(parameter.unsafeGetTensorImpl()));
  return all;
}

void Engine::convert(const std::filesystem::path& folder, const std::string& tag,
                     const std::map<std::string, double>& client_state) {
  checkpoint::DeepspeedPickle about{.stage = zero_optimization_stage(),
                                    .ranks = world_.size(),
                                    .parameters = parameters_in_python(),
                                    .bf16 = bfloat16_enabled(),
                                    .clip_grad_norm = config_.clip_grad_norm,
                                    .train_batch = config_.train_batch,
                                    .groups = groups_in_python(),
                                    .sub_group = config_.sub_group,
                                    .progress = {.steps = global_steps_,
                                                 .skipped_steps = skipped_steps_,
                                                 .samples = global_steps_ * config_.train_batch,
                                                 .client_state = client_state}};
  if (config_.schedule) about.progress.scheduler_iteration = global_steps_ - skipped_steps_ - 1;
  const comm::Group group = world_.group();
  checkpoint::SaveRanks ranks;
  if (group.size() > 1)
    ranks = {.rank = group.rank(),
             .size = group.size(),
             .all_gather = [&](const std::string& mine) { return group.all_gather_bytes(mine); }};
  convert_to_folder(folder / (tag + own_ending), folder, tag, about, ranks);
}

void Engine::save_checkpoint(const std::filesystem::path& folder, std::string tag,
                             const std::map<std::string, double>& client_state,
                             CheckpointForm form) {
  if (tag.empty()) tag = text("global_step", global_steps_);
  check_tag(tag, world_);
  if (form == CheckpointForm::Deepspeed) refuse_deepspeeds_form();
  checkpoint::TrainState state{.step = global_steps_};
  if (scaler_) state.numbers = scaler_->state();
  const std::int64_t inside = micro_steps_ % config_.accumulate;
  state.numbers["deepspeed.inside_batch"] = static_cast<double>(inside);
  state.numbers["deepspeed.micro_batches"] =
      static_cast<double>(config_.accumulate * config_.ranks);
  state.numbers["deepspeed.skipped_steps"] = static_cast<double>(skipped_steps_);
  for (const auto& [name, value] : client_state)
    state.numbers[std::string(client_prefix) + name] = value;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw FileError("cannot create the folder: " + error.message(), {.file = folder.string()});
  if (form == CheckpointForm::Deepspeed) {
    const std::filesystem::path own = folder / (tag + own_ending);
    const auto remove_own = [&] {
      if (world_.rank() == 0) std::filesystem::remove_all(own, error);
    };
    try {
      save(own, sharded_, *optimizer_, state);
      convert(folder, tag, client_state);
    } catch (...) {
      remove_own();
      throw;
    }
    remove_own();
    world_.group().barrier();
    return;
  }
  save(folder / tag, sharded_, *optimizer_, state, {.gradients = inside != 0});
  if (world_.rank() == 0) write_file(folder / latest, tag);
  world_.group().barrier();
}

std::optional<LoadedCheckpoint> Engine::load_checkpoint(const std::filesystem::path& folder,
                                                        std::string tag) {
  if (tag.empty()) {
    if (world_.rank() == 0 && std::filesystem::exists(folder / latest))
      tag = trim(read_text_file(folder / latest));
    tag = world_.group().broadcast_bytes(tag, 0);
    if (tag.empty()) return std::nullopt;
  }
  check_tag(tag, world_);
  checkpoint::TrainState state = load(folder / tag, sharded_, *optimizer_);
  const auto number = [&](const char* name) {
    const auto found = state.numbers.find(name);
    return found == state.numbers.end() ? 0 : static_cast<std::int64_t>(found->second);
  };
  const std::int64_t inside = number("deepspeed.inside_batch");
  const std::int64_t before = number("deepspeed.micro_batches");
  const std::int64_t now = config_.accumulate * config_.ranks;
  if (inside != 0 && before != now)
    throw UsageError(
        text("the checkpoint ", (folder / tag).string(), " is from the middle of a batch of ",
             before, " micro-batches, not ", now),
        {.hint = "Load one that was saved at the end of a batch."});
  global_steps_ = state.step;
  micro_steps_ = state.step * config_.accumulate + inside;
  skipped_steps_ = number("deepspeed.skipped_steps");
  if (scaler_ && state.numbers.contains("scale")) scaler_->load_state(state.numbers);
  if (scaler_ && state.numbers.contains("deepspeed.loss_scale")) {  // of DeepSpeed's own folder
    std::map<std::string, double> scaler = scaler_->state();
    scaler["scale"] = state.numbers.at("deepspeed.loss_scale");
    scaler_->load_state(scaler);
  }
  has_gradients_ = false;
  norm_.reset();
  follow_schedule();
  LoadedCheckpoint loaded{.folder = folder / tag, .client_state = {}};
  for (const auto& [name, value] : state.numbers)
    if (name.starts_with(client_prefix))
      loaded.client_state[name.substr(client_prefix.size())] = value;
  return loaded;
}

}  // namespace trestle::deepspeed
