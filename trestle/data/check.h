#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trestle/data/dataset.h"

// Implements `trestle data check`: reads every example of a data set as training does, and lists
// all problems instead of stopping at the first.
namespace trestle::data {

struct CheckReport {
  std::int64_t count = 0;                          // good examples
  std::map<std::string, std::int64_t> sizes = {};  // "1918 x 1280 x 3" -> how many
  // Targets that are class ids, and those of them that are ignored (-100); 0 where the check does
  // not read class ids.
  std::int64_t targets = 0, ignored = 0;
  // Other facts about the data, such as the names of the classes.
  std::vector<std::string> notes = {};
  // One message each, with the file's name; empty if there are none.
  std::vector<std::string> problems = {};

  bool ok() const { return problems.empty(); }
};

// Called now and then with (examples read, all examples).
using CheckProgress = std::function<void(std::int64_t, std::int64_t)>;

// Adds the problems of these examples to the report: files that cannot be read, values that are
// infinite or NaN, targets that are not a class from 0 to `classes` - 1 (0: any target is valid),
// and examples of an unusual shape, which no batch accepts. Throws nothing for a problem of the
// data. Part::Input reads no target.
void check_examples(const Dataset& dataset, std::int64_t classes, CheckReport& report,
                    const CheckProgress& progress = {}, Part part = Part::Both);

}  // namespace trestle::data
