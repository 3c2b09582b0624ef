#include "trestle/train/predict/evaluator.h"

#include <cmath>
#include <iostream>
#include <memory>

#include "trestle/base/counted.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/cli/verbs.h"
#include "trestle/train/progress/bar.h"

namespace trestle::cli {

namespace {

struct EvaluateArguments {
  train::EvaluateOptions options;
  FieldChanges changes;
  bool json = false;
};

// The fields that may differ from the run's.
const std::vector<std::string> fields = {"data.images",
                                         "data.masks",
                                         "data.folder",
                                         "data.input_array",
                                         "data.target_array",
                                         "data.mask_suffix",
                                         "data.mask_values",
                                         "data.mask_ignore",
                                         "data.tokens",
                                         "data.order",
                                         "data.validation_windows",
                                         "data.scale",
                                         "data.image_width",
                                         "data.image_height",
                                         "data.workers",
                                         "devices.use",
                                         "devices.threads",
                                         "pipeline.balance",
                                         "pipeline.micro_batches",
                                         "pipeline.split_size",
                                         "train.batch",
                                         "train.precision",
                                         "train.loss",
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
            << result.metric << "\n";
  if (result.metric_name == "log_probability")
    std::cout << "perplexity " << std::exp(-result.metric) << "\n";
  std::cout << "done      in " << format_duration(result.seconds) << std::endl;
}

int perform_evaluate(const EvaluateArguments& arguments, const RunOptions& options) {
  // A copy: its progress bar is destroyed, and so erased, before an error is printed.
  train::EvaluateOptions wanted = arguments.options;
  wanted.changes = arguments.changes;
  wanted.models = options.models;
  wanted.user_parts = user_parts_of(options);
  if (!arguments.json) wanted.progress = train::count_bar("evaluated");
  const train::EvaluateResult result = train::evaluate(wanted);
  if (arguments.json)
    std::cout << to_json(result) << std::endl;
  else
    print_evaluation(result);
  return 0;
}

}  // namespace

void add_evaluate(Verb app, const RunOptions& options) {
  Verb verb = app.add_verb(
      "evaluate",
      "Compute loss and metric of a run's weights, on its validation data or other data");
  auto arguments = std::make_shared<EvaluateArguments>();
  verb.add("run", arguments->options.run, "A run folder, or a .safetensors file in one")
      .required()
      .type("RUN_FOLDER");
  add_checkpoint_flag(verb, arguments->options.checkpoint);
  verb.add_switch("--json", arguments->json, "Print one JSON object");
  add_field_flags(verb, arguments->changes, options, fields);
  verb.footer(
      examples({"trestle evaluate runs/unet_quick",
                "trestle evaluate runs/unet_quick --checkpoint last --devices cpu --json",
                "trestle evaluate runs/unet_quick --images other/photos --masks other/masks",
                "trestle evaluate runs/resnet18_mnist --folder data/mnist"}) +
      "Without data flags it uses the run's validation examples, and gives the numbers of its "
      "metrics.jsonl.\n"
      "With other data it uses the validation split if there is one, else every example.\n" +
      exit_codes());
  verb.action([verb, arguments, &options] {
    refuse_checkpoint_of_file(verb, arguments->options.run);
    return perform_evaluate(*arguments, options);
  });
}

}  // namespace trestle::cli
