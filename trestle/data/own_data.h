#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "trestle/data/dataset.h"
#include "trestle/data/picture.h"

// A program's own data sets, opened by the names that its recipes use (trestle/run.h).
namespace trestle::data {

// The recipe's settings for the data. A missing path is empty, a missing number 0.
struct DataOptions {
  std::string folder, images, masks;
  PictureOptions picture = {};  // for image files
  std::int64_t classes = 0;     // from [model]
  std::uint64_t seed = 42;      // from [train]
};

struct OwnData {
  std::shared_ptr<const Dataset> training;
  // If null, the share 'validation' of [data] is split off the training data.
  std::shared_ptr<const Dataset> validation = nullptr;
};

using OpenOwnData = std::function<OwnData(const DataOptions&)>;

}  // namespace trestle::data
