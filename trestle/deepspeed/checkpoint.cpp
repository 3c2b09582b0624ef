// Checkpoints under DeepSpeed's tags.
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"
#include "trestle/deepspeed/deepspeed.h"
#include "trestle/sharding/save/save.h"

namespace trestle::deepspeed {
namespace {

constexpr auto latest = "latest";
constexpr std::string_view client_prefix = "client.";

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

void Engine::save_checkpoint(const std::filesystem::path& folder, std::string tag,
                             const std::map<std::string, double>& client_state) {
  if (tag.empty()) tag = text("global_step", global_steps_);
  check_tag(tag, world_);
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
  save(folder / tag, sharded_, *optimizer_, state, {.gradients = inside != 0});
  if (world_.rank() == 0) write_file(folder / latest, tag);
  world_.group().barrier();
}

std::optional<LoadedCheckpoint> Engine::load_checkpoint(const std::filesystem::path& folder,
                                                        std::string tag) {
  if (tag.empty()) {
    if (world_.rank() == 0 && std::filesystem::exists(folder / latest))
      tag = trim(read_file(folder / latest));
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
