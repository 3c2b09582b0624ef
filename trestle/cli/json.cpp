#include "trestle/cli/json.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "trestle/recipe/recipe_fields.h"
#include "trestle/view/labels.h"
#include "trestle/view/time_axis.h"

namespace trestle::cli {

namespace {

using nlohmann::ordered_json;

// Replaces bytes that are not valid UTF-8: a file's name may have any bytes.
std::string one_line(const ordered_json& object) {
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json actions_of(const schedule::Timeline& timeline) {
  ordered_json actions = ordered_json::array();
  for (const schedule::Event& event : timeline.events)
    if (view::takes_rank(event))
      actions.push_back({{"rank", event.rank},
                         {"action", view::grid_label(event.action)},
                         {"begin", event.begin},
                         {"end", event.end}});
  return actions;
}

ordered_json panel_of(const schedule::Timeline& timeline) {
  const bool slots = view::resolve(view::TimeUnit::Auto, {timeline}) == view::TimeUnit::Slots;
  ordered_json panel = {{"title", timeline.title},
                        {"ranks", timeline.rank_count},
                        {"stages", timeline.stages},
                        {"micro_batches", timeline.micro_batches},
                        {"unit", slots ? "slots" : "seconds"},
                        {"makespan", schedule::makespan(timeline)},
                        {"idle", schedule::idle_share_of_makespan(timeline)},
                        {"idle_of_ideal", schedule::idle_share_of_ideal(timeline)},
                        {"peak_activations", schedule::peak_live_activations(timeline)},
                        {"peak_bytes", timeline.peak_bytes},
                        {"actions", actions_of(timeline)}};
  if (!timeline.whole_layers.empty()) panel["whole_layers"] = timeline.whole_layers;
  return panel;
}

}  // namespace

std::string error_json(const std::string& message, const std::string& hint, int exit_code) {
  ordered_json error = {{"message", message}};
  if (!hint.empty()) error["hint"] = hint;
  error["exit_code"] = exit_code;
  return one_line({{"error", error}});
}

std::string to_json(const Diagnosis& diagnosis) {
  return one_line({{"trestle", diagnosis.trestle},
                   {"libtorch", diagnosis.libtorch},
                   {"mkl", diagnosis.mkl},
                   {"onednn", diagnosis.onednn},
                   {"compiler", diagnosis.compiler},
                   {"system", diagnosis.system},
                   {"cpu", diagnosis.cpu},
                   {"cores", diagnosis.cores},
                   {"memory_bytes", diagnosis.memory},
                   {"virtual_devices", diagnosis.virtual_devices},
                   {"gpus", diagnosis.gpus},
                   {"schedules", diagnosis.schedules},
                   {"models", diagnosis.models},
                   {"data_sets", diagnosis.data_sets},
                   {"losses", diagnosis.losses},
                   {"metrics", diagnosis.metrics},
                   {"machines", diagnosis.machines},
                   {"attention",
                    {{"field", diagnosis.attention.field},
                     {"default", diagnosis.attention.core},
                     {"cpu", diagnosis.attention.cpu},
                     {"virtual", diagnosis.attention.virtual_devices},
                     {"cuda", diagnosis.attention.gpus}}}});
}

std::string to_json(const recipe::Recipe& recipe) {
  ordered_json sections = ordered_json::object();
  for (const recipe::Field& field : recipe::recipe_fields())
    sections[field.section][field.key] =
        std::visit([](const auto& value) { return ordered_json(value); }, field.get(recipe));
  return one_line(sections);
}

std::string view_json(const std::vector<schedule::Timeline>& panels,
                      const std::vector<std::string>& written) {
  ordered_json all = ordered_json::array();
  for (const schedule::Timeline& panel : panels) all.push_back(panel_of(panel));
  return one_line({{"panels", all}, {"written", written}});
}

namespace {

ordered_json messages_of(const view::SplitPicture::Exchange& exchange) {
  ordered_json all = ordered_json::array();
  for (const auto& [way, list] :
       {std::pair("forward", &exchange.forward), {"backward", &exchange.backward}})
    for (const auto& message : *list)
      all.push_back(
          {{"way", way}, {"collective", view::to_string(message.kind)}, {"words", message.words}});
  return all;
}

ordered_json tensor_of(const view::SplitPicture::Tensor& tensor, int ranks) {
  ordered_json on_ranks = ordered_json::array();
  for (int rank = 0; rank < ranks; ++rank) {
    ordered_json ranges = ordered_json::array();
    if (!tensor.held.empty())
      for (const auto& range : tensor.held[static_cast<std::size_t>(rank)])
        ranges.push_back({range.begin, range.begin + range.size});
    on_ranks.push_back({{"ranges", ranges}, {"bytes", view::bytes_on_rank(tensor, rank)}});
  }
  ordered_json all = {{"name", tensor.name}, {"shape", tensor.shape}};
  all["split_dimension"] = tensor.held.empty() ? ordered_json() : ordered_json(tensor.dimension);
  if (!tensor.tied_to.empty()) all["tied_to"] = tensor.tied_to;
  all["ranks"] = on_ranks;
  return all;
}

}  // namespace

std::string split_json(const view::SplitPicture& picture, const std::vector<std::string>& written) {
  ordered_json sections = ordered_json::array();
  for (const auto& section : picture.sections) {
    ordered_json steps = ordered_json::array();
    for (const auto& step : section.steps) {
      ordered_json tensors = ordered_json::array();
      for (const auto& tensor : step.tensors) tensors.push_back(tensor_of(tensor, picture.ranks));
      steps.push_back({{"name", step.name},
                       {"tensors", tensors},
                       {"before", messages_of(step.before)},
                       {"after", messages_of(step.after)}});
    }
    sections.push_back({{"name", section.name}, {"copies", section.copies}, {"steps", steps}});
  }
  return one_line({{"title", picture.title},
                   {"ranks", picture.ranks},
                   {"sections", sections},
                   {"written", written}});
}

std::string to_json(const CheckedData& checked) {
  return one_line({{"good_examples", checked.good},
                   {"synthetic", checked.synthetic},
                   {"sizes", checked.sizes},
                   {"notes", checked.notes},
                   {"problems", checked.problems}});
}

}  // namespace trestle::cli
