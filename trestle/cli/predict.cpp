#include <iostream>
#include <memory>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/cli/verbs.h"
#include "trestle/device/spin_guard.h"
#include "trestle/train/predict/predictor.h"
#include "trestle/train/progress/bar.h"

namespace trestle::cli {

namespace {

struct PredictArguments {
  train::PredictOptions options;
  FieldChanges changes;
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
  // A copy: its progress bar is destroyed, and so erased, before an error is printed.
  train::PredictOptions wanted = arguments.options;
  wanted.changes = arguments.changes;
  wanted.models = options.models;
  wanted.user_parts = user_parts_of(options);
  if (!arguments.json) wanted.progress = train::count_bar("predicted");
  const SpinGuard guard;
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

void add_predict(Verb app, const RunOptions& options) {
  Verb verb = app.add_verb(
      "predict",
      "Write masks or a table of classes for new images or volumes, with a run's weights");
  auto arguments = std::make_shared<PredictArguments>();
  verb.add("run", arguments->options.run, "A run folder, or a .safetensors file in one")
      .required()
      .type("RUN_FOLDER");
  verb.add("--images", arguments->options.images, "A folder of images or volumes, or one of them")
      .required()
      .type("DIR");
  verb.add("--out", arguments->options.out,
           "The folder for <image>_mask.png, <volume>_mask.nii.gz or predictions.csv")
      .required()
      .type("DIR");
  verb.add_number(
          "--top-k", {1, 1'000'000},
          [arguments](std::int64_t k) { arguments->options.top_k = static_cast<int>(k); },
          "Classes of each image in predictions.csv, the most probable first (default 1)")
      .type("K");
  add_overwrite_flag(verb, arguments->options.overwrite);
  add_checkpoint_flag(verb, arguments->options.checkpoint);
  verb.add("--devices", arguments->options.devices,
           "cpu, virtual:2x512MiB, cuda:0,cuda:1, cuda:all (default: the run's)")
      .type("DEVICES");
  verb.add_switch("--json", arguments->json, "Print one JSON object per line, for each image");
  add_field_flags(verb, arguments->changes, options, {"data.overlap", "data.blend"});
  verb.footer(
      examples({"trestle predict runs/unet_quick --images photos --out masks",
                "trestle predict runs/resnet18_mnist --images digits --out . --top-k 3",
                "trestle predict runs/unet3d_quick --images scans --out masks --overlap 0.75",
                "trestle predict runs/unet_quick/best.safetensors --images car.jpg --out masks "
                "--devices cpu"}) +
      exit_codes());
  verb.action([verb, arguments, &options] {
    refuse_checkpoint_of_file(verb, arguments->options.run);
    return perform_predict(*arguments, options);
  });
}

}  // namespace trestle::cli
