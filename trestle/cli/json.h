#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/recipe/recipe.h"
#include "trestle/schedule/timeline.h"
#include "trestle/view/split_picture.h"

// The output of verbs with --json: objects of one line each, without a newline.
namespace trestle::cli {

// {"error": {"message": ..., "hint": ..., "exit_code": 2}}: the last line of a verb that failed.
// Without a hint there is no such key.
std::string error_json(const std::string& message, const std::string& hint, int exit_code);

// The facts of `trestle doctor`.
struct Diagnosis {
  std::string trestle, libtorch;  // versions
  bool mkl = false, onednn = false;
  std::string compiler, system, cpu;
  int cores = 0;
  Bytes memory = 0;
  int virtual_devices = 0;  // the maximum
  int gpus = 0;
  std::vector<std::string> schedules, models, data_sets, losses, metrics;
  std::vector<std::string> machines = {};  // files for trestle plan, in words
  // The core of attention: its key and default, and its operator on each type of device.
  struct Attention {
    std::string field, core, cpu, virtual_devices, gpus;
  } attention;
};
std::string to_json(const Diagnosis& diagnosis);

// {"model": {"name": "unet", ...}, "data": {...}, ...}: every key with its value.
std::string to_json(const recipe::Recipe& recipe);

// Times are in seconds, or in slots for a schedule without measured costs. "actions" has those that
// occupy a rank; `written` are the files that the verb wrote.
std::string view_json(const std::vector<schedule::Timeline>& panels,
                      const std::vector<std::string>& written);

// Every section, step and tensor, with what each rank holds: "ranges" [begin, end) of the split
// dimension, none for a whole tensor, and bytes.
std::string split_json(const view::SplitPicture& picture, const std::vector<std::string>& written);

// {"good_examples": 16, "synthetic": true, "sizes": {...}, "notes": [...], "problems": [...]}
struct CheckedData {
  std::int64_t good = 0;
  bool synthetic = false;
  std::map<std::string, std::int64_t> sizes = {};
  std::vector<std::string> notes = {}, problems = {};
};
std::string to_json(const CheckedData& checked);

}  // namespace trestle::cli
