#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trestle/data/dataset.h"

// What `trestle data check` runs: reads every example of a data set as a training does, and lists
// everything that would stop one, instead of stopping at the first.
namespace trestle::data {

struct CheckReport {
  std::int64_t count = 0;                          // good examples
  std::map<std::string, std::int64_t> sizes = {};  // "1918 x 1280 x 3" -> how many
  // What else there is to know, as which class is which.
  std::vector<std::string> notes = {};
  // One message each, with the file's name; empty means all is well.
  std::vector<std::string> problems = {};

  bool ok() const { return problems.empty(); }
};

// Called now and then with (examples read, examples in all).
using CheckProgress = std::function<void(std::int64_t, std::int64_t)>;

// Adds what there is to say of these examples to the report: files that cannot be read, targets
// that are no class below `classes` (0: any will do), and examples of another shape than most,
// which no batch takes. Never throws for what is wrong with the data.
void check_examples(const Dataset& dataset, std::int64_t classes, CheckReport& report,
                    const CheckProgress& progress = {});

}  // namespace trestle::data
