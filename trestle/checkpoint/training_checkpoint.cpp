#include "trestle/checkpoint/training_checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle::checkpoint {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int format_version = 1;

fs::path beside(const fs::path& folder, const char* ending) { return folder.string() + ending; }

void rename_folder(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0)
    throw FileError(text("cannot be renamed to ", to.string(), ": ", std::strerror(errno)),
                    {.file = from.string()});
}

// The names of files must reach the disk as well as the files do.
void flush_folder(const fs::path& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  fsync(descriptor);
  close(descriptor);
}

void swap_in(const fs::path& fresh, const fs::path& folder) {
  const fs::path old = beside(folder, ".old");
  if (!fs::exists(folder)) {
    rename_folder(fresh, folder);
  } else if (renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    fs::remove_all(fresh);
  } else {
    // Between these two lines only <folder>.old is whole: read_training_checkpoint() looks there.
    rename_folder(folder, old);
    rename_folder(fresh, folder);
  }
  flush_folder(folder.parent_path().empty() ? fs::path(".") : folder.parent_path());
  std::error_code ignored;
  fs::remove_all(old, ignored);
}

fs::path whole_folder(const fs::path& folder) {
  if (fs::exists(folder)) return folder;
  if (const fs::path old = beside(folder, ".old"); fs::exists(old)) return old;
  throw FileError(
      "nothing to resume: there is no such folder",
      {.file = folder.string(), .hint = "It appears at the end of the first epoch, or on Ctrl-C."});
}

// JSON has neither infinity nor NaN, which a metric of somebody's own may be: they are words there.
json in_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double number(const json& value) {
  if (value == "nan") return std::nan("");
  if (value == "inf") return HUGE_VAL;
  if (value == "-inf") return -HUGE_VAL;
  return value.get<double>();
}

std::string to_json(const TrainState& state) {
  json numbers = json::object();
  for (const auto& [name, value] : state.numbers) numbers[name] = in_json(value);
  json out = {{"format", format_version},
              {"step", state.step},
              {"epoch", state.epoch},
              {"batch", state.batch},
              {"seed", state.seed},
              {"best_epoch", state.best_epoch},
              {"best_metric", in_json(state.best_metric)},
              {"recipe_hash", state.recipe_hash},
              {"numbers", numbers}};
  return out.dump(2) + "\n";
}

TrainState from_json(const fs::path& path) {
  try {
    const json in = json::parse(read_file(path));
    if (in.at("format").get<int>() != format_version)
      throw FormatError(text("format ", in.at("format").dump(),
                             " is not known, this program writes ", format_version),
                        {.file = path.string()});
    TrainState state;
    in.at("step").get_to(state.step);
    in.at("epoch").get_to(state.epoch);
    in.at("batch").get_to(state.batch);
    in.at("seed").get_to(state.seed);
    in.at("best_epoch").get_to(state.best_epoch);
    state.best_metric = number(in.at("best_metric"));
    in.at("recipe_hash").get_to(state.recipe_hash);
    for (const auto& [name, value] : in.at("numbers").get_ref<const json::object_t&>())
      state.numbers[name] = number(value);
    if (state.step < 0 || state.epoch < 0 || state.batch < 0)
      throw FormatError("step, epoch and batch cannot be negative", {.file = path.string()});
    return state;
  } catch (const json::exception& error) {
    throw FormatError(text("not the state of a run: ", error.what()), {.file = path.string()});
  }
}

}  // namespace

void write_training_checkpoint(const fs::path& folder, const TrainingCheckpoint& resume) {
  const fs::path fresh = beside(folder, ".tmp");
  try {
    fs::remove_all(fresh);
    fs::create_directories(fresh);
    write_tensors(fresh / "weights.safetensors", resume.weights);
    write_tensors(fresh / "optimizer.safetensors", resume.optimizer);
    if (!resume.gradients.empty()) write_tensors(fresh / "gradients.safetensors", resume.gradients);
    write_file(fresh / "state.json", to_json(resume.state));
    flush_folder(fresh);
    swap_in(fresh, folder);
  } catch (const fs::filesystem_error& error) {
    throw FileError(error.code().message(), {.file = error.path1().string()});
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(fresh, ignored);  // a half-written folder only takes the room that is missing
    throw;
  }
}

TrainState read_train_state(const fs::path& folder) {
  return from_json(whole_folder(folder) / "state.json");
}

TrainingCheckpoint read_training_checkpoint(const fs::path& folder) {
  const fs::path from = whole_folder(folder);
  TrainingCheckpoint resume;
  resume.state = from_json(from / "state.json");
  resume.weights = read_tensors(from / "weights.safetensors").tensors;
  resume.optimizer = read_tensors(from / "optimizer.safetensors").tensors;
  if (const fs::path gradients = from / "gradients.safetensors"; fs::exists(gradients))
    resume.gradients = read_tensors(gradients).tensors;
  return resume;
}

}  // namespace trestle::checkpoint
