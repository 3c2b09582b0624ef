#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

// Where a training run stood, in plain numbers. No torch in here.
namespace trestle::checkpoint {

struct TrainState {
  std::int64_t step = 0;   // optimizer steps done; the number of the next one
  std::int64_t epoch = 0;  // the epoch that step belongs to, from 0
  // Of that epoch's samples those already done, in the order of the data: with another batch, or
  // divided over other ranks, the run goes on at the same one.
  std::int64_t samples = 0;
  std::uint64_t seed = 0;
  std::int64_t best_epoch = -1;  // -1: no validation yet
  double best_metric = 0;
  std::string recipe_hash = {};  // of what must not change between the two halves of a run
  // Anything else that must come back exactly: running sums, learning rates.
  std::map<std::string, double> numbers = {};
  // Version 1 counted the epoch's batches and did not say how large they are: who reads one of its
  // folders makes samples of them. Never written.
  std::optional<std::int64_t> batches = {};
};

// Where version 1 kept it.
inline constexpr const char* state_name = "state.json";

// A JSON object. Numbers come back to the bit; infinity and NaN too, which are words in it.
std::string format_state(const TrainState& state);

// Of either version. Throws FormatError, naming `file`, for anything else.
TrainState parse_state(std::string_view json, const std::string& file);

}  // namespace trestle::checkpoint
