#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

// The position of a training run in plain numbers. Torch-free.
namespace trestle::checkpoint {

struct TrainState {
  std::int64_t step = 0;   // optimizer steps done; also the number of the next one
  std::int64_t epoch = 0;  // the epoch of the next step, from 0
  // The number of this epoch's samples already done, in the order of the data. A run with another
  // batch size or other ranks resumes at the same sample.
  std::int64_t samples = 0;
  std::uint64_t seed = 0;
  std::int64_t best_epoch = -1;  // -1: no validation yet
  double best_metric = 0;
  std::string recipe_hash = {};  // of the settings that must not change on a resume
  // Other state that must be restored exactly: running sums, learning rates.
  std::map<std::string, double> numbers = {};
  // Version 1 counted the epoch's batches without their size; a reader of such a folder must
  // convert them to samples. Never written.
  std::optional<std::int64_t> batches = {};
};

// The state's file in version 1.
inline constexpr const char* state_name = "state.json";

// A JSON object. Numbers round-trip to the bit; infinity and NaN are stored as words.
std::string format_state(const TrainState& state);

// Parses either version. Throws FormatError with the name of `file` for anything else.
TrainState parse_state(std::string_view json, const std::string& file);

}  // namespace trestle::checkpoint
