#include "trestle/plan/balance.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>
#include <optional>

#include "apps/trestle/verbs.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/layer_costs.h"
#include "trestle/train/progress.h"

namespace trestle::app {

namespace {

struct Arguments {
  std::string recipe;
  std::optional<std::string> devices;
  std::string by = "both";
  std::string save;
  bool json = false;
};

struct Cut {
  std::vector<int> balance;
  std::vector<double> seconds;  // forward and backward of each stage
  std::vector<Bytes> bytes;
};

Cut cut_of(const train::LayerCosts& costs, const std::string& by) {
  const int stages = static_cast<int>(costs.budgets.size());
  Cut cut;
  cut.balance = by == "time"   ? plan::balance_by_time(costs.profile, stages)
                : by == "size" ? plan::balance_by_size(costs.profile, stages, costs.sizes)
                               : plan::balance_within(costs.profile, costs.budgets, costs.sizes);
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
  return cut;
}

std::string bar(double share) {
  constexpr int width = 24;
  const int full = static_cast<int>(share * width + 0.5);
  std::string line;
  for (int i = 0; i < width; ++i) line += i < full ? "━" : " ";
  return line;
}

void print_table(const train::LayerCosts& costs, const Cut& cut) {
  const auto& layers = costs.profile.layers;
  std::size_t widest = 5;
  double slowest = 0;
  for (const auto& layer : layers) {
    widest = std::max(widest, layer.name.size());
    slowest = std::max(slowest, layer.forward + layer.backward);
  }
  const auto column = [](const std::string& words, int width) {
    std::cout << std::setw(width) << std::right << words;
  };
  std::cout << std::setw(static_cast<int>(widest) + 6) << std::left << "layer";
  for (const char* name : {"forward", "backward"}) column(name, 11);
  for (const char* name : {"weights", "kept inside"}) column(name, 13);
  std::cout << "\n";
  std::size_t next = 0;
  int first = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (static_cast<int>(i) == first) {
      std::cout << "── stage " << next << " · " << cut.balance[next] << " layers · "
                << format_duration(cut.seconds[next]) << " · " << format_bytes(cut.bytes[next]);
      if (costs.budgets[next] > 0) std::cout << " of " << format_bytes(costs.budgets[next]);
      std::cout << "\n";
      first += cut.balance[next++];
    }
    const auto& layer = layers[i];
    std::cout << std::setw(4) << std::right << i << "  " << std::setw(static_cast<int>(widest))
              << std::left << layer.name;
    column(format_duration(layer.forward), 11);
    column(format_duration(layer.backward), 11);
    column(format_bytes(layer.parameters), 13);
    column(format_bytes(layer.inner), 13);
    std::cout << "  " << bar(slowest > 0 ? (layer.forward + layer.backward) / slowest : 0) << "\n";
  }
}

void print_json(const train::LayerCosts& costs, const Cut& cut) {
  std::string profile = plan::to_json(costs.profile);
  profile.pop_back();
  std::cout << "{\"balance\": [" << join(cut.balance, ", ") << "], \"stage_seconds\": ["
            << join(cut.seconds, ", ") << "], \"stage_bytes\": [" << join(cut.bytes, ", ")
            << "], \"profile\": " << profile << "}\n";
}

int perform(const Arguments& arguments, const RunOptions& options) {
  recipe::Recipe recipe = recipe::read_recipe(arguments.recipe);
  if (arguments.devices) recipe::set_field(recipe, "devices.use", *arguments.devices);
  if (!arguments.save.empty()) need_folder_for(arguments.save, "--save");
  const auto progress = train::make_progress(
      arguments.json ? train::ProgressStyle::Silent : train::progress_style_of(STDOUT_FILENO).first,
      train::Colours::Off, std::cout);
  const train::LayerCosts costs = train::measure_layers(recipe, *progress, options.models);
  if (!arguments.save.empty()) write_file(arguments.save, plan::to_json(costs.profile));
  const Cut cut = cut_of(costs, arguments.by);
  if (arguments.json) {
    print_json(costs, cut);
    return 0;
  }
  std::cout << recipe.model.name << " · " << costs.profile.layers.size() << " layers · "
            << costs.examples << (costs.examples == 1 ? " example" : " examples")
            << " a micro-batch, " << costs.sizes.micro_batches << " at once · cut by "
            << (arguments.by == "both" ? "time, within the budgets" : arguments.by) << "\n";
  print_table(costs, cut);
  std::cout << "balance = [" << join(cut.balance, ", ") << "]\n";
  if (!arguments.save.empty()) std::cout << "wrote " << arguments.save << "\n";
  return 0;
}

}  // namespace

void add_balance(CLI::App& app, Action& action, const RunOptions& options) {
  CLI::App* verb = app.add_subcommand(
      "balance", "Measure each layer of a recipe's model, and cut it into stages");
  auto arguments = std::make_shared<Arguments>();
  verb->add_option("recipe", arguments->recipe, "A TOML file, see recipes/")
      ->required()
      ->type_name("RECIPE");
  verb->add_option("--devices", arguments->devices,
                   "One for each stage (default: as in the recipe)")
      ->type_name("DEVICES");
  verb->add_option("--by", arguments->by,
                   "What is made even: time; size, which is memory; or both, the fastest cut that "
                   "fits the devices' budgets (default)")
      ->check(CLI::IsMember({"time", "size", "both"}))
      ->type_name("WHAT");
  verb->add_option("--save", arguments->save, "Write what was measured as JSON")->type_name("FILE");
  verb->add_flag("--json", arguments->json, "Print the cut and what was measured as JSON");
  verb->footer(examples({"trestle balance recipes/unet_quick.toml",
                         "trestle balance recipes/unet_quick.toml --by size",
                         "trestle balance recipes/unet_carvana.toml --devices virtual:4x2GiB"}) +
               exit_codes());
  verb->callback([arguments, &action, &options] {
    action = [arguments, &options] { return perform(*arguments, options); };
  });
}

}  // namespace trestle::app
