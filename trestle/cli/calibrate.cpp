#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/shell_word.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/cli/calibration_output.h"
#include "trestle/cli/exit_codes.h"
#include "trestle/cli/ranks.h"
#include "trestle/cli/verbs.h"
#include "trestle/train/calibrate/calibrate.h"
#include "trestle/train/progress/bar.h"
#include "trestle/train/run_folder/result_files.h"

namespace trestle::cli {

namespace {

struct CalibrateArguments {
  std::vector<std::string> ranks, backends;
  std::string device = "cpu";
  std::filesystem::path out;
  Overwrite overwrite = Overwrite::Refuse;
  bool quick = false, json = false;
};

// The words of "2,4", also over several flags.
std::vector<std::string> listed_words(const std::vector<std::string>& lists) {
  std::vector<std::string> words;
  for (const std::string& list : lists)
    for (const std::string& word : split(list, ',')) words.push_back(trim(word));
  return words;
}

std::vector<int> parse_group_sizes(const std::vector<std::string>& lists) {
  constexpr int most = 64;
  std::vector<int> sizes;
  for (const std::string& word : listed_words(lists)) {
    const bool digits = !word.empty() && word.size() < 4 &&
                        word.find_first_not_of("0123456789") == std::string::npos;
    const int size = digits ? std::stoi(word) : 0;
    if (size < 1 || size > most)
      throw UsageError(text("--ranks takes numbers from 1 to ", most, ", not '", word, "'"),
                       {.hint = "For example --ranks 2,4; 1 measures no messages."});
    if (size > 1) sizes.push_back(size);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

struct Backends {
  bool threads = false;
  std::string processes;  // "gloo", "nccl" or none
};

Backends parse_backends(const CalibrateArguments& arguments) {
  Backends wanted;
  const bool gpu = arguments.device.starts_with("cuda");
  if (arguments.backends.empty()) return {.threads = !gpu, .processes = gpu ? "nccl" : "gloo"};
  for (const std::string& word : listed_words(arguments.backends)) {
    if (word == "threads") {
      wanted.threads = true;
    } else if (word == "gloo" || word == "nccl") {
      if (!wanted.processes.empty() && wanted.processes != word)
        throw UsageError("--backend takes gloo or nccl, not both",
                         {.hint = "Measure a second file with the other one."});
      wanted.processes = word;
    } else {
      throw UsageError(text("--backend takes threads, gloo or nccl, not '", word, "'"),
                       {.hint = "For example --backend threads,gloo."});
    }
  }
  if (wanted.threads && gpu)
    throw UsageError("--backend threads measures ranks on the CPU and on virtual devices",
                     {.hint = "Ranks on GPUs are processes: --backend nccl or gloo."});
  if (wanted.processes == "nccl" && !gpu)
    throw UsageError(text("--backend nccl needs GPUs, not --device ", arguments.device),
                     {.hint = "Add --device cuda:0, or use --backend gloo."});
  return wanted;
}

// Shows what is measured on the terminal.
std::function<void(const std::string&, int, int)> bar_of(bool json) {
  const auto [style, colours] = train::progress_style_of(STDOUT_FILENO);
  if (json || style != train::ProgressStyle::Terminal) return {};
  const auto bar =
      std::make_shared<train::Bar>(std::cout, colours, columns_of_terminal(STDOUT_FILENO));
  return [bar](const std::string& what, int done, int all) {
    if (done == all)
      bar->erase();
    else
      bar->show({.label = what, .done = done, .all = all});
  };
}

constexpr const char* file_head =
    "# Figures of one machine, written by trestle calibrate. docs/calibrate.md explains the "
    "sections.\n# Another machine or another version of trestle or libtorch refuses the file.\n\n";

int measure(const World* world, const CalibrateArguments& arguments,
            train::CalibrateOptions options) {
  options.progress = bar_of(arguments.json);
  const train::Calibration measured = train::calibrate(world, options);
  if (!measured.machine.measured_on) return 0;  // the first rank has it
  // Another calibration may have written it meanwhile.
  train::refuse_replacing({arguments.out}, arguments.overwrite, "--out");
  write_file(arguments.out, file_head + plan::to_toml(measured.machine));
  if (arguments.json)
    std::cout << calibration_json(measured, arguments.out.string()) << std::endl;
  else
    std::cout << calibration_words(measured, columns_for_text(STDOUT_FILENO)) << "wrote "
              << arguments.out.string() << " in " << format_duration(measured.seconds)
              << "      use it: trestle plan RECIPE --machine "
              << shell_word(arguments.out.string()) << std::endl;
  return 0;
}

int perform_calibrate(const CalibrateArguments& arguments, const std::vector<std::string>& words) {
  train::CalibrateOptions options{
      .name = arguments.out.stem().string(), .device = arguments.device, .quick = arguments.quick};
  RankOptions ranks{.words = words};
  const auto check = [&] {
    need_folder_for(arguments.out, "--out");
    train::refuse_replacing({arguments.out}, arguments.overwrite, "--out");
    const int room = train::ranks_of_device(arguments.device);
    const Backends backends = parse_backends(arguments);
    options.threads = backends.threads;
    options.processes = !backends.processes.empty();
    options.backend = backends.processes;
    const bool launched = asked_ranks(ranks) > 1;
    options.ranks = parse_group_sizes(arguments.ranks);
    if (arguments.ranks.empty() && !launched) options.ranks = train::default_group_sizes(room);
    if (!launched && options.processes && !options.ranks.empty())
      ranks.default_ranks = options.ranks.back();
    // The ranks that are started here inherit it.
    if (options.processes) setenv("TRESTLE_BACKEND", options.backend.c_str(), 1);
  };
  if (!is_valid_on_all_ranks(check)) return usage_error;
  return on_ranks(ranks, [&](const World* world) { return measure(world, arguments, options); });
}

}  // namespace

void add_calibrate(Verb app, const std::vector<std::string>& words) {
  Verb verb = app.add_verb(
      "calibrate", "Measure this machine for trestle plan: products, memory, messages, optimizers");
  auto arguments = std::make_shared<CalibrateArguments>();
  verb.add("--out", arguments->out, "The machine file to write (TOML)").type("FILE").required();
  verb.add("--ranks", arguments->ranks,
           "Sizes of the groups whose messages are measured, such as 2,4 (default: 2,4, or the "
           "powers of two up to the number of GPUs). The largest one's processes are started here. "
           "Under torchrun or trestle launch: sizes within the first machine (default: powers of "
           "two up to its ranks)")
      .type("N,...");
  verb.add("--backend", arguments->backends,
           "How messages travel: threads, gloo, nccl (default: threads,gloo; on GPUs nccl)")
      .type("NAME,...");
  verb.add("--device", arguments->device,
           "What is measured: cpu (default), virtual, or cuda:0, with a GPU for each rank")
      .one_of({"cpu", "virtual", "cuda:0"})
      .type("DEVICE");
  verb.add_switch("--quick", arguments->quick,
                  "A few seconds instead of one or two minutes: fewer sizes and samples");
  add_overwrite_flag(verb, arguments->overwrite);
  verb.add_switch("--json", arguments->json, "Print one JSON object");
  verb.footer(
      examples({"trestle calibrate --out mine.toml",
                "trestle calibrate --device virtual --ranks 2 --quick --out quick.toml",
                "trestle launch --nodes 2 --node-rank 0 --rendezvous node0 -- trestle calibrate "
                "--out both.toml",
                "trestle plan recipes/unet_quick.toml --devices 4 --machine mine.toml"}) +
      "\nLet nothing else run meanwhile. Every figure of the file says whether it was measured, "
      "with its spread, or assumed. See docs/calibrate.md.\n" +
      exit_codes());
  verb.action([arguments, &words] { return perform_calibrate(*arguments, words); });
}

}  // namespace trestle::cli
