#include "trestle/train/evaluator.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "apps/trestle/verbs.h"
#include "trestle/base/counted.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/train/bar.h"

namespace trestle::app {

namespace {

struct EvaluateArguments {
  train::EvaluateOptions options;
  FieldChanges changes;
  bool json = false;
};

// What may be another than in the run.
const std::vector<std::string> fields = {
    "data.images",         "data.masks",       "data.folder",       "data.input_array",
    "data.target_array",   "data.mask_suffix", "data.mask_values",  "data.mask_ignore",
    "data.scale",          "data.image_width", "data.image_height", "data.workers",
    "devices.use",         "devices.threads",  "pipeline.balance",  "pipeline.micro_batches",
    "pipeline.split_size", "train.batch",      "train.precision",   "train.loss",
    "train.metric"};

void print_evaluation(const train::EvaluateResult& result) {
  std::cout << "weights   " << result.weights.string();
  if (result.epoch > 0) std::cout << " · epoch " << result.epoch << ", step " << result.step;
  std::cout << "\ndata      " << counted(result.examples, "example");
  if (!result.data.empty()) std::cout << " of " << join(result.data, ", ");
  std::cout << (result.others ? "" : ", the run's own for validation")
            << (result.synthetic_data ? ", synthetic\n" : "\n");
  std::cout << "loss      " << result.validation_loss << "\n"
            << result.metric_name
            << std::string(std::max<std::size_t>(10, result.metric_name.size() + 1) -
                               result.metric_name.size(),
                           ' ')
            << result.metric << "\n"
            << "done      in " << format_duration(result.seconds) << std::endl;
}

int perform_evaluate(const EvaluateArguments& arguments, const RunOptions& options) {
  train::EvaluateOptions wanted = arguments.options;  // its bar goes before an error is printed
  wanted.changes = arguments.changes;
  wanted.models = options.models;
  wanted.additions = additions_of(options);
  if (!arguments.json) wanted.progress = train::count_bar("evaluated");
  const train::EvaluateResult result = train::evaluate(wanted);
  if (arguments.json)
    std::cout << to_json(result) << std::endl;
  else
    print_evaluation(result);
  return 0;
}

}  // namespace

void add_evaluate(CLI::App& app, Action& action, const RunOptions& options) {
  CLI::App* verb = app.add_subcommand(
      "evaluate", "Validation loss and metric of a run's weights, on its own data or on others");
  auto arguments = std::make_shared<EvaluateArguments>();
  verb->add_option("run", arguments->options.run, "A run folder, or a .safetensors file in one")
      ->required()
      ->type_name("RUN_FOLDER");
  add_checkpoint_flag(*verb, arguments->options.checkpoint);
  verb->add_flag("--json", arguments->json, "Print one JSON object");
  add_field_flags(*verb, arguments->changes, options, fields);
  verb->footer(
      examples({"trestle evaluate runs/unet_quick",
                "trestle evaluate runs/unet_quick --checkpoint last --devices cpu --json",
                "trestle evaluate runs/unet_quick --images other/photos --masks other/masks",
                "trestle evaluate runs/resnet18_mnist --folder data/mnist"}) +
      "Without other data: what the run kept for validation, with the numbers of its "
      "metrics.jsonl.\n"
      "Of others every example counts, or the part for validation where they have one of their "
      "own.\n" +
      exit_codes());
  verb->callback([verb, arguments, &action, &options] {
    action = [verb, arguments, &options] {
      refuse_checkpoint_of_file(*verb, arguments->options.run);
      return perform_evaluate(*arguments, options);
    };
  });
}

}  // namespace trestle::app
