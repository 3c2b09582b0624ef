#include "trestle/plan/balance.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string_view>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/base/utf8.h"
#include "trestle/cli/verbs.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/layer_costs.h"
#include "trestle/train/progress/progress.h"
#include "trestle/train/run_folder/result_files.h"
#include "trestle/view/cut_picture.h"

namespace trestle::cli {

namespace {

struct BalanceArguments {
  std::string recipe;
  std::optional<std::string> devices;
  std::string by = "both";
  std::string save;
  std::string profile;
  std::string svg;
  Overwrite overwrite = Overwrite::Refuse;
  bool json = false;
};

struct Cut {
  std::vector<int> balance;
  std::vector<double> seconds;  // forward and backward of each stage
  std::vector<Bytes> bytes;
  schedule::Timeline predicted;  // one step under the recipe's schedule
};

Cut cut_of(const recipe::Recipe& recipe, const train::LayerCosts& costs, const std::string& by,
           const RunOptions& options) {
  const int stages = static_cast<int>(costs.budgets.size());
  Cut cut;
  cut.balance = by == "time"   ? plan::balance_by_time(costs.profile, stages)
                : by == "size" ? plan::balance_by_size(costs.profile, stages, costs.sizes)
                               : plan::balance_within(costs.profile, costs.budgets, costs.sizes,
                                                      train::device_numbers(costs));
  int first = 0;
  for (const int layers : cut.balance) {
    double seconds = 0;
    for (int i = first; i < first + layers; ++i) {
      const auto& layer = costs.profile.layers[static_cast<std::size_t>(i)];
      seconds += layer.forward + layer.backward;
    }
    cut.seconds.push_back(seconds);
    cut.bytes.push_back(plan::stage_bytes(costs.profile, first, first + layers, costs.sizes));
    first += layers;
  }
  cut.predicted = train::predict_cut(recipe, costs, cut.balance, user_parts_of(options)).timeline;
  return cut;
}

std::string bar(double share, int width) {
  std::string line;
  for (int i = 0; i < static_cast<int>(share * width + 0.5); ++i) line += "━";
  return line.empty() ? line : "  " + line;
}

// Leaves out the middle of a long name, because the ends identify nested layers.
std::string shortened(const std::string& name, int columns) {
  if (columns_of(name) <= columns) return name;
  std::vector<std::string> letters;
  for (std::string_view rest = name; !rest.empty();) {
    const std::size_t bytes = std::max<std::size_t>(utf8_length(rest, 0), 1);
    letters.emplace_back(rest.substr(0, bytes));
    rest.remove_prefix(bytes);
  }
  const auto head = static_cast<std::size_t>((columns - 1) / 2);
  const std::size_t tail = static_cast<std::size_t>(columns - 1) - head;
  std::string out;
  for (std::size_t i = 0; i < head; ++i) out += letters[i];
  out += "…";
  for (std::size_t i = letters.size() - tail; i < letters.size(); ++i) out += letters[i];
  return out;
}

std::string stage_line(const train::LayerCosts& costs, const Cut& cut, std::size_t stage) {
  std::string line = text(
      "── stage ", stage, " · ", costs.devices[stage], " · ", counted(cut.balance[stage], "layer"),
      " · ", format_duration(cut.seconds[stage]), " · ", format_bytes(cut.bytes[stage]));
  if (costs.budgets[stage] > 0) line += " of " + format_bytes(costs.budgets[stage]);
  if (std::ranges::count(costs.devices, costs.devices[stage]) > 1) line += " (shared)";
  return line;
}

void print_table(const train::LayerCosts& costs, const Cut& cut, int columns) {
  const auto& layers = costs.profile.layers;
  constexpr int number = 6, time = 10, bytes = 13, most_bar = 16;
  constexpr int fixed = number + 2 * time + 2 * bytes;
  int name = 5;
  double slowest = 0;
  for (const auto& layer : layers) {
    name = std::max(name, columns_of(layer.name));
    slowest = std::max(slowest, layer.forward + layer.backward);
  }
  name = std::min(name, std::max(columns - fixed, 12));
  const int bar_width = std::clamp(columns - fixed - name - 2, 0, most_bar);
  const auto column = [](const std::string& words, int width) {
    std::cout << std::string(static_cast<std::size_t>(std::max(width - columns_of(words), 0)), ' ')
              << words;
  };
  std::cout << std::setw(number + name) << std::left << "layer";
  for (const char* head : {"forward", "backward"}) column(head, time);
  for (const char* head : {"weights", "kept inside"}) column(head, bytes);
  std::cout << "\n";
  std::size_t next = 0;
  int first = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (static_cast<int>(i) == first) {
      std::cout << folded(stage_line(costs, cut, next), columns, 3) << "\n";
      first += cut.balance[next++];
    }
    const auto& layer = layers[i];
    const std::string shown = shortened(layer.name, name);
    std::cout << std::setw(number - 2) << std::right << i << "  " << shown;
    column("", name - columns_of(shown));
    column(format_duration(layer.forward), time);
    column(format_duration(layer.backward), time);
    column(format_bytes(layer.parameters), bytes);
    column(format_bytes(layer.inner), bytes);
    std::cout << bar(slowest > 0 ? (layer.forward + layer.backward) / slowest : 0, bar_width)
              << "\n";
  }
}

// The predicted peak of a stage's device; nothing for the cpu, whose memory is not metered.
std::optional<Bytes> peak_of(const train::LayerCosts& costs, const Cut& cut, std::size_t stage) {
  if (costs.devices[stage] == "cpu") return std::nullopt;
  const int device = cut.predicted.device_of_stage.at(stage);
  return cut.predicted.device_peak_bytes.at(static_cast<std::size_t>(device));
}

// "virtual:0 4 MiB of 64 MiB", each device once.
std::string peaks_line(const train::LayerCosts& costs, const Cut& cut) {
  std::vector<std::string> parts;
  for (std::size_t stage = 0; stage < costs.devices.size(); ++stage) {
    const auto before = costs.devices.begin() + static_cast<std::ptrdiff_t>(stage);
    const auto peak = peak_of(costs, cut, stage);
    if (!peak || std::find(costs.devices.begin(), before, costs.devices[stage]) != before) continue;
    const Bytes budget = costs.budgets[stage];
    const bool fits = budget == 0 || *peak <= budget;
    parts.push_back(fits ? text(costs.devices[stage], " ", format_bytes(*peak),
                                budget > 0 ? " of " + format_bytes(budget) : "")
                         : text(costs.devices[stage], " may not fit: needs ", format_bytes(*peak),
                                ", has ", format_bytes(budget)));
  }
  return join(parts, " · ");
}

// JSON without its line ends and indents; within texts JSON has no line ends.
std::string on_one_line(const std::string& json) {
  std::vector<std::string> lines;
  for (const std::string& line : split(json, '\n'))
    if (std::string words = trim(line); !words.empty()) lines.push_back(std::move(words));
  return join(lines, " ");
}

void print_json(const train::LayerCosts& costs, const Cut& cut) {
  std::vector<std::string> peaks;  // by stage
  for (std::size_t stage = 0; stage < costs.devices.size(); ++stage) {
    const auto peak = peak_of(costs, cut, stage);
    peaks.push_back(peak ? text(*peak) : "null");
  }
  std::cout << "{\"balance\": [" << join(cut.balance, ", ") << "], \"stage_seconds\": ["
            << join(cut.seconds, ", ") << "], \"stage_bytes\": [" << join(cut.bytes, ", ")
            << "], \"predicted_step_seconds\": " << schedule::makespan(cut.predicted)
            << ", \"predicted_idle\": " << schedule::idle_share_of_makespan(cut.predicted)
            << ", \"predicted_peak_bytes\": [" << join(peaks, ", ")
            << "], \"profile\": " << on_one_line(plan::to_json(costs.profile)) << "}\n";
}

std::string prediction(const recipe::Recipe& recipe, const Cut& cut) {
  const auto& step = cut.predicted;
  return text(recipe.pipeline.schedule, " · ",
              counted(step.micro_batches, "micro-batch", "micro-batches"), " · recompute ",
              join(recipe.pipeline.recompute, ", "), " · predicted ",
              format_duration(schedule::makespan(step)), " per step, ",
              std::lround(100 * schedule::idle_share_of_makespan(step)), " % idle");
}

void print_step_prediction(const recipe::Recipe& recipe, const train::LayerCosts& costs,
                           const Cut& cut, int columns) {
  std::cout << folded(prediction(recipe, cut), columns, 2) << "\n";
  const std::string peaks = peaks_line(costs, cut);
  if (!peaks.empty()) std::cout << folded("predicted peaks: " + peaks, columns, 2) << "\n";
}

view::CutPicture picture_of(const recipe::Recipe& recipe, const train::LayerCosts& costs,
                            const Cut& cut) {
  view::CutPicture picture;
  picture.title = text(recipe.model.name, " · balance [", join(cut.balance, ", "), "]");
  picture.subtitle = prediction(recipe, cut);
  for (const auto& layer : costs.profile.layers)
    picture.layers.push_back({.name = layer.name,
                              .forward = layer.forward,
                              .backward = layer.backward,
                              .weights = layer.parameters,
                              .kept = layer.inner});
  const int count = static_cast<int>(picture.layers.size());
  const std::vector<int> memory = plan::memory_of_values(costs.profile);
  std::map<int, std::pair<int, Bytes>> kept;  // memory -> the first layer that keeps it, its bytes
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const auto& value = costs.profile.values[i];
    for (const int layer : value.saved_by) {
      const auto one = kept.try_emplace(memory[i], layer, value.bytes).first;
      one->second = {std::min(one->second.first, layer), std::max(one->second.second, value.bytes)};
    }
    for (const int to : value.to) {
      if (value.from >= 0 && to > value.from + 1 && to < count)
        picture.skips.push_back({.from = value.from, .to = to});
    }
  }
  for (const auto& [number, one] : kept)
    picture.layers[static_cast<std::size_t>(one.first)].kept += one.second;
  for (std::size_t stage = 0; stage < cut.balance.size(); ++stage)
    picture.stages.push_back({.device = costs.devices[stage],
                              .layers = cut.balance[stage],
                              .peak = peak_of(costs, cut, stage).value_or(0),
                              .budget = costs.budgets[stage]});
  return picture;
}

plan::LayerProfile read_profile(const std::string& file) {
  need_file(file, "--profile");
  try {
    return plan::layer_profile_from_json(read_text_file(file));
  } catch (const FormatError& error) {
    throw UsageError(text(file, ": ", error.what()),
                     {.hint = "Measure it again: trestle balance RECIPE --save FILE."});
  }
}

train::LayerCosts costs_of(const recipe::Recipe& recipe, const BalanceArguments& arguments,
                           const RunOptions& options) {
  if (!arguments.profile.empty())
    return train::costs_of_profile(recipe, read_profile(arguments.profile), options.models,
                                   user_parts_of(options));
  const auto progress = train::make_progress(
      arguments.json ? train::ProgressStyle::Silent : train::progress_style_of(STDOUT_FILENO).first,
      train::Colours::Off, std::cout);
  return train::measure_layers(recipe, *progress, options.models, user_parts_of(options));
}

// The files that are written must have the right endings and existing folders.
void check_balance_files(const BalanceArguments& arguments) {
  need_ending(arguments.svg, ".svg", "--svg");
  need_ending(arguments.save, ".json", "--save");
  for (const auto& [file, flag] : {std::pair(arguments.svg, "--svg"), {arguments.save, "--save"}}) {
    if (file.empty()) continue;
    need_folder_for(file, flag);
    train::refuse_replacing({file}, arguments.overwrite, flag);
  }
}

int perform_balance(const BalanceArguments& arguments, const RunOptions& options) {
  recipe::Recipe recipe = recipe::read_recipe(arguments.recipe);
  if (arguments.devices) recipe::set_field(recipe, "devices.use", *arguments.devices);
  check_balance_files(arguments);
  const train::LayerCosts costs = costs_of(recipe, arguments, options);
  if (!arguments.save.empty()) write_file(arguments.save, plan::to_json(costs.profile));
  const Cut cut = cut_of(recipe, costs, arguments.by, options);
  if (!arguments.svg.empty())
    write_file(arguments.svg, view::to_svg_cut(picture_of(recipe, costs, cut)));
  if (arguments.json) {
    print_json(costs, cut);
    return 0;
  }
  const int columns = columns_for_text(STDOUT_FILENO);
  std::cout << folded(text(recipe.model.name, " · ",
                           counted(std::ssize(costs.profile.layers), "layer"), " · ",
                           counted(costs.examples, "example"), " per micro-batch, ",
                           counted(costs.sizes.micro_batches, "micro-batch", "micro-batches"),
                           " in flight · cut by ",
                           arguments.by == "both" ? "time, within the budgets" : arguments.by),
                      columns, 2)
            << "\n";
  print_table(costs, cut, columns);
  print_step_prediction(recipe, costs, cut, columns);
  std::cout << "balance = [" << join(cut.balance, ", ") << "]\n";
  for (const std::string& file : {arguments.save, arguments.svg})
    if (!file.empty()) std::cout << "wrote " << file << "\n";
  return 0;
}

}  // namespace

void add_balance(Verb app, const RunOptions& options) {
  Verb verb = app.add_verb("balance",
                           "Measure each layer of a recipe's model, and cut the model in stages");
  auto arguments = std::make_shared<BalanceArguments>();
  verb.add("recipe", arguments->recipe, "A TOML file, see recipes/").required().type("RECIPE");
  verb.add("--devices", arguments->devices,
           "One for each stage, for example virtual:4x2GiB (default: the recipe's)")
      .type("DEVICES");
  verb.add("--by", arguments->by,
           "What the cut balances: time; size (memory); or both, the fastest cut that fits the "
           "devices' budgets (default)")
      .one_of({"time", "size", "both"})
      .type("WHAT");
  verb.add("--save", arguments->save, "Write the measurements as JSON").type("FILE");
  verb.add(
          "--profile", arguments->profile,
          "Read the measurements from a file of --save, of the same model and micro-batch, instead "
          "of measuring")
      .type("FILE")
      .excludes("--save");
  verb.add("--svg", arguments->svg, "Draw the layers and the cut").type("FILE");
  add_overwrite_flag(verb, arguments->overwrite);
  verb.add_switch("--json", arguments->json,
                  "Print the cut and the measurements as one JSON object");
  verb.footer(
      examples({"trestle balance recipes/unet_quick.toml",
                "trestle balance recipes/unet_quick.toml --by size",
                "trestle balance recipes/unet_quick.toml --save layers.json",
                "trestle balance recipes/unet_quick.toml --profile layers.json --svg cut.svg",
                "trestle balance recipes/unet_carvana.toml --devices virtual:4x2GiB"}) +
      exit_codes());
  verb.action([arguments, &options] { return perform_balance(*arguments, options); });
}

}  // namespace trestle::cli
