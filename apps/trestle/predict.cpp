#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "apps/trestle/verbs.h"
#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/train/bar.h"
#include "trestle/train/predictor.h"

namespace trestle::app {

namespace {

struct PredictArguments {
  train::PredictOptions options;
  bool json = false;
};

void print_prediction(const train::PredictResult& result, const train::PredictOptions& options) {
  if (result.images.empty())
    std::cout << "wrote nothing";
  else if (result.table.empty())
    std::cout << "wrote " << counted(std::ssize(result.masks), "mask") << " to "
              << options.out.string();
  else
    std::cout << "wrote the classes of " << counted(std::ssize(result.classes), "image") << " to "
              << result.table.string();
  std::cout << " in " << format_duration(result.seconds) << std::endl;
}

int perform_predict(const PredictArguments& arguments, const RunOptions& options) {
  train::PredictOptions wanted = arguments.options;  // its bar goes before an error is printed
  wanted.models = options.models;
  wanted.additions = additions_of(options);
  if (!arguments.json) wanted.progress = train::count_bar("predicted");
  const train::PredictResult result = train::predict(wanted);
  if (arguments.json)
    std::cout << to_json(result) << std::flush;
  else
    print_prediction(result, wanted);
  if (result.problems.empty()) return 0;
  throw FormatError(text(counted(std::ssize(result.problems), "image"), " could not be read:\n  ",
                         join(result.problems, "\n  ")));
}

}  // namespace

void add_predict(CLI::App& app, Action& action, const RunOptions& options) {
  CLI::App* verb = app.add_subcommand(
      "predict", "Write masks for new images, or a table of their classes, with a run's weights");
  auto arguments = std::make_shared<PredictArguments>();
  verb->add_option("run", arguments->options.run, "A run folder, or a .safetensors file in one")
      ->required()
      ->type_name("RUN_FOLDER");
  verb->add_option("--images", arguments->options.images, "A folder of images, or one image")
      ->required()
      ->type_name("DIR");
  verb->add_option("--out", arguments->options.out,
                   "Where <image>_mask.png, or predictions.csv, is written")
      ->required()
      ->type_name("DIR");
  add_number(
      *verb, "--top-k", {1, 1'000'000},
      [arguments](std::int64_t k) { arguments->options.top_k = static_cast<int>(k); },
      "Classes of each image in predictions.csv, the most probable first (default 1)")
      ->type_name("K");
  add_checkpoint_flag(*verb, arguments->options.checkpoint);
  verb->add_option("--devices", arguments->options.devices,
                   "cpu, virtual:2x512MiB, cuda:0,cuda:1, cuda:all (default: as in the run)")
      ->type_name("DEVICES");
  verb->add_flag("--json", arguments->json, "Print one JSON object a line, for each image");
  verb->footer(
      examples(
          {"trestle predict runs/unet_quick --images photos --out masks",
           "trestle predict runs/resnet18_mnist --images digits --out . --top-k 3",
           "trestle predict runs/unet_quick/best.safetensors --images car.jpg --out . --devices "
           "cpu"}) +
      exit_codes());
  verb->callback([verb, arguments, &action, &options] {
    action = [verb, arguments, &options] {
      refuse_checkpoint_of_file(*verb, arguments->options.run);
      return perform_predict(*arguments, options);
    };
  });
}

}  // namespace trestle::app
