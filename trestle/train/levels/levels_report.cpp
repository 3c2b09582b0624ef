// The measurements of `trestle levels` as a picture and as JSON.
#include <cmath>
#include <nlohmann/json.hpp>

#include "trestle/base/text.h"
#include "trestle/train/levels/levels.h"

namespace trestle::train {
namespace {

std::string bytes_text(double bytes) { return format_bytes(std::llround(bytes)); }

}  // namespace

view::BarsPicture levels_picture(const std::vector<LevelRow>& rows, const std::string& title) {
  view::BarsPicture picture{.title = title};
  const int ranks = rows.empty() ? 0 : rows.back().ranks;
  picture.subtitle = text("memory and traffic of one of ", ranks,
                          " ranks, measured on virtual devices; plain: one device "
                          "with the whole batch");
  view::BarPanel memory{.title = "memory of a device"}, traffic{.title = "sent by a rank per step"},
      time{.title = "duration of a step, all ranks on these cores"};
  for (const LevelRow& row : rows) {
    picture.rows.push_back({.name = row.name, .note = row.per_parameter + " bytes per parameter"});
    memory.bars.push_back(
        {.value = static_cast<double>(row.measured.rest),
         .label = text(format_bytes(row.measured.rest), ", peak ", format_bytes(row.measured.peak)),
         .more = static_cast<double>(row.measured.peak - row.measured.rest),
         .mark = row.formula.rest});
    traffic.bars.push_back({.value = row.measured.moved,
                            .label = row.ranks == 1 ? "nothing" : bytes_text(row.measured.moved),
                            .mark = row.ranks == 1 ? std::optional<double>()
                                                   : std::optional<double>(row.formula.moved)});
    time.bars.push_back(
        {.value = row.measured.seconds, .label = format_duration(row.measured.seconds)});
  }
  picture.panels = {memory, traffic, time};
  picture.legend = {"measured: weights, gradients and optimizer state",
                    "more at the peak of a step", "the formula"};
  return picture;
}

std::string levels_json(const std::vector<LevelRow>& rows, const LevelsWeights& weights) {
  nlohmann::ordered_json levels = nlohmann::ordered_json::array();
  for (const LevelRow& row : rows) {
    nlohmann::ordered_json one = {{"name", row.name},
                                  {"level", std::string(to_string(row.level))},
                                  {"ranks", row.ranks},
                                  {"replicate", row.replicate},
                                  {"shard", row.shard},
                                  {"tensor", row.tensor},
                                  {"bytes_a_parameter", row.per_parameter},
                                  {"formula_bytes", std::llround(row.formula.rest)},
                                  {"formula_moved_bytes", std::llround(row.formula.moved)}};
    if (row.formula.link_seconds > 0) one["link_seconds"] = row.formula.link_seconds;
    if (row.measured.peak > 0) {
      one["bytes"] = row.measured.rest;
      one["peak_bytes"] = row.measured.peak;
      one["moved_bytes"] = std::llround(row.measured.moved);
      one["step_seconds"] = row.measured.seconds;
    }
    levels.push_back(one);
  }
  return nlohmann::ordered_json{{"parameters", weights.trained + weights.frozen},
                                {"trained_parameters", weights.trained},
                                {"frozen_bytes", weights.frozen_bytes},
                                {"levels", levels}}
      .dump();
}

}  // namespace trestle::train
