#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "trestle/data/dataset.h"
#include "trestle/data/picture.h"

// Data sets of a program's own, by the names that its recipes use (trestle/run.h).
namespace trestle::data {

// What a recipe says of its data. A path that it leaves out is empty, a number 0.
struct DataOptions {
  std::string folder, images, masks;
  PictureOptions picture = {};  // how image files are to be read
  std::int64_t classes = 0;     // of [model]
  std::uint64_t seed = 42;      // of [train]
};

struct OwnData {
  std::shared_ptr<const Dataset> training;
  // Null: the share 'validation' of [data] is kept from the training data.
  std::shared_ptr<const Dataset> validation = nullptr;
};

using OpenOwnData = std::function<OwnData(const DataOptions&)>;

}  // namespace trestle::data
