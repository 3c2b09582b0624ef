#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "apps/trestle/verbs.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/files/check.h"
#include "trestle/data/synthetic/synthesize.h"

namespace trestle::app {

namespace {

struct Synthesis {
  std::string kind, out;
  std::int64_t count = 0, seed = 42;
  int width = 1918, height = 1280;
};

struct Check {
  std::string kind, images, masks, folder;
  int classes = 2;
};

// A count that moves in place, on a terminal only.
std::function<void(std::int64_t, std::int64_t)> counter(const char* verb) {
  if (isatty(STDOUT_FILENO) == 0) return {};
  return [verb](std::int64_t done, std::int64_t all) {
    std::cout << "\r" << verb << " " << done << "/" << all << (done == all ? "\n" : "")
              << std::flush;
  };
}

int synthesize(const Synthesis& wanted) {
  if (wanted.kind == "carvana") {
    data::SynthesizeCarvanaOptions options;
    options.width = wanted.width;
    options.height = wanted.height;
    options.seed = static_cast<std::uint64_t>(wanted.seed);
    options.progress = counter("drawn");
    data::synthesize_carvana(wanted.out, wanted.count, options);
    std::cout << "wrote " << wanted.count << " images to " << wanted.out
              << "/train_hq and their masks to " << wanted.out << "/train_masks" << std::endl;
  } else {
    data::SynthesizeMnistOptions options;
    options.seed = static_cast<std::uint64_t>(wanted.seed);
    options.progress = counter("drawn");
    data::synthesize_mnist(wanted.out, wanted.count, options);
    std::cout << "wrote " << wanted.count << " digits, and some to test with, to " << wanted.out
              << std::endl;
  }
  return 0;
}

int check(const Check& wanted) {
  if (wanted.kind == "carvana" && (wanted.images.empty() || wanted.masks.empty()))
    throw UsageError("data check carvana needs --images DIR and --masks DIR");
  if (wanted.kind == "mnist" && wanted.folder.empty())
    throw UsageError("data check mnist needs --folder DIR");
  const data::CheckReport report =
      wanted.kind == "carvana"
          ? data::check_carvana(wanted.images, wanted.masks, wanted.classes, counter("checked"))
          : data::check_mnist(wanted.folder);
  std::cout << report.count << " good examples\n";
  for (const auto& [size, count] : report.sizes)
    std::cout << "  " << count << " of " << size << "\n";
  std::cout << std::flush;
  if (report.ok()) return 0;
  throw FormatError(text(report.problems.size(),
                         report.problems.size() == 1 ? " problem:\n  " : " problems:\n  ",
                         join(report.problems, "\n  ")));
}

}  // namespace

void add_data(CLI::App& app, Action& action) {
  CLI::App* verb = app.add_subcommand("data", "Make look-alike data, or check data in full");
  verb->require_subcommand(1);
  const CLI::IsMember kinds({"carvana", "mnist"});

  auto synthesis = std::make_shared<Synthesis>();
  CLI::App* make =
      verb->add_subcommand("synthesize", "Write look-alikes in the same files and formats");
  make->add_option("kind", synthesis->kind, "carvana or mnist")
      ->required()
      ->check(kinds)
      ->type_name("KIND");
  make->add_option("--count", synthesis->count, "How many")->required()->type_name("N");
  make->add_option("--out", synthesis->out, "The folder")->required()->type_name("DIR");
  make->add_option("--width", synthesis->width, "carvana: pixels (default 1918)")->type_name("N");
  make->add_option("--height", synthesis->height, "carvana: pixels (default 1280)")->type_name("N");
  make->add_option("--seed", synthesis->seed, "The same seed gives the same files (default 42)")
      ->type_name("N");
  make->footer(examples({"trestle data synthesize carvana --count 64 --out data/carvana",
                         "trestle data synthesize mnist --count 6000 --out data/mnist"}));
  make->callback([synthesis, &action] { action = [synthesis] { return synthesize(*synthesis); }; });

  auto wanted = std::make_shared<Check>();
  CLI::App* look = verb->add_subcommand(
      "check", "Read every file and list everything that would stop a training");
  look->add_option("kind", wanted->kind, "carvana or mnist")
      ->required()
      ->check(kinds)
      ->type_name("KIND");
  look->add_option("--images", wanted->images, "carvana: the folder of images")->type_name("DIR");
  look->add_option("--masks", wanted->masks, "carvana: the folder of masks")->type_name("DIR");
  look->add_option("--classes", wanted->classes,
                   "carvana: how many class ids there are (default 2)")
      ->type_name("N");
  look->add_option("--folder", wanted->folder, "mnist: the folder of the four files")
      ->type_name("DIR");
  look->footer(examples(
      {"trestle data check carvana --images data/carvana/train_hq --masks data/carvana/train_masks",
       "trestle data check mnist --folder data/mnist"}));
  look->callback([wanted, &action] { action = [wanted] { return check(*wanted); }; });
}

}  // namespace trestle::app
