#pragma once

#include <string_view>
#include <vector>

#include "trestle/schedule/generate.h"

// The schedules behind the names of generate.h. Each file <name>.cpp of this folder defines one
// entry of the table, `Generator <name>_schedule()`. CMake collects the entries. Not installed.
namespace trestle::schedule::generators {

struct Generator {
  std::string_view name;
  std::string_view summary;         // one line of help
  bool all_forwards_first = false;  // then a whole-batch loss is possible
  bool splits_backward = false;     // I and W in place of some B
  std::string_view sizes = "any";   // which numbers of stages and micro-batches
  int stages_per_rank = 1;          // 0 = any
  StageOrder stage_order = StageOrder::Loop;
  Schedule (*make)(const GenerateOptions&) = {};  // compute actions only
};

// Every schedule, sorted by name.
const std::vector<Generator>& all_generators();

}  // namespace trestle::schedule::generators
