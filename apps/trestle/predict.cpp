#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "apps/trestle/verbs.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/train/predictor.h"

namespace trestle::app {

void add_predict(CLI::App& app, Action& action, const RunOptions& options) {
  CLI::App* verb =
      app.add_subcommand("predict", "Write masks for new images with a run's best weights");
  auto arguments = std::make_shared<train::PredictOptions>();
  verb->add_option("run", arguments->run, "A run folder, or a .safetensors file in one")
      ->required()
      ->type_name("RUN_FOLDER");
  verb->add_option("--images", arguments->images, "A folder of images, or one image")
      ->required()
      ->type_name("DIR");
  verb->add_option("--out", arguments->out, "Where <image>_mask.png is written")
      ->required()
      ->type_name("DIR");
  verb->add_option("--devices", arguments->devices,
                   "cpu, virtual:2x512MiB, cuda:0,cuda:1, cuda:all (default: as in the run)")
      ->type_name("DEVICES");
  verb->footer(examples(
      {"trestle predict runs/unet_quick --images photos --out masks",
       "trestle predict runs/unet_quick/best.safetensors --images car.jpg --out . --devices cpu"}));
  verb->callback([arguments, &action, &options] {
    action = [arguments, &options] {
      arguments->models = options.models;
      arguments->additions = additions_of(options);
      const train::PredictResult result = train::predict(*arguments);
      std::cout << "wrote " << result.masks.size()
                << (result.masks.size() == 1 ? " mask to " : " masks to ")
                << arguments->out.string() << " in " << format_duration(result.seconds)
                << std::endl;
      if (result.problems.empty()) return 0;
      throw FormatError(text(result.problems.size(),
                             result.problems.size() == 1 ? " image" : " images",
                             " could not be read:\n  ", join(result.problems, "\n  ")));
    };
  });
}

}  // namespace trestle::app
