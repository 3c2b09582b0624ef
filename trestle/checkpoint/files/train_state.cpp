#include "trestle/checkpoint/files/train_state.h"

#include <cmath>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/strict_json.h"

namespace trestle::checkpoint {

namespace {

using nlohmann::json;

// JSON has neither infinity nor NaN, which a user's metric may be: they are stored as words.
json state_in_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double number(const json& value) {
  if (value == "nan") return std::nan("");
  if (value == "inf") return HUGE_VAL;
  if (value == "-inf") return -HUGE_VAL;
  return value.get<double>();
}

// nlohmann would convert 1e300 to an arbitrary integer.
std::int64_t whole(const json& in, const char* key, const std::string& file) {
  const json& value = in.at(key);
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > (std::uint64_t{1} << 62)))
    throw FormatError(text("this is not the state of a run: its ", key, " is not an integer"),
                      {.file = file});
  return value.get<std::int64_t>();
}

}  // namespace

std::string format_state(const TrainState& state) {
  json numbers = json::object();
  for (const auto& [name, value] : state.numbers) numbers[name] = state_in_json(value);
  const json out = {{"step", state.step},
                    {"epoch", state.epoch},
                    {"samples", state.samples},
                    {"seed", state.seed},
                    {"best_epoch", state.best_epoch},
                    {"best_metric", state_in_json(state.best_metric)},
                    {"recipe_hash", state.recipe_hash},
                    {"numbers", numbers}};
  return out.dump(2);
}

TrainState parse_state(std::string_view bytes, const std::string& file) {
  const json in = parse_object(bytes, "the state of this run", file);
  try {
    // A newer version is recorded in the surrounding index.
    if (in.contains("format") && in["format"] != 1)
      throw FormatError(
          text("format ", in["format"].dump(-1, ' ', true, json::error_handler_t::replace),
               " of a run's state is unknown"),
          {.file = file});
    TrainState state;
    state.step = whole(in, "step", file);
    state.epoch = whole(in, "epoch", file);
    if (in.contains("format"))
      state.batches = whole(in, "batch", file);
    else
      state.samples = whole(in, "samples", file);
    if (!in.at("seed").is_number_unsigned())
      throw FormatError("this is not the state of a run: its seed is not an integer",
                        {.file = file});
    in.at("seed").get_to(state.seed);
    state.best_epoch = whole(in, "best_epoch", file);
    state.best_metric = number(in.at("best_metric"));
    in.at("recipe_hash").get_to(state.recipe_hash);
    for (const auto& [name, value] : in.at("numbers").get_ref<const json::object_t&>())
      state.numbers[name] = number(value);
    if (state.step < 0 || state.epoch < 0 || state.samples < 0 || state.batches.value_or(0) < 0)
      throw FormatError("step, epoch and the position in it cannot be negative", {.file = file});
    return state;
  } catch (const json::exception& error) {
    throw FormatError(text("this is not the state of a run: ", error.what()), {.file = file});
  }
}

}  // namespace trestle::checkpoint
