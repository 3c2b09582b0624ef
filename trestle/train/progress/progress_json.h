#pragma once

#include <iosfwd>
#include <memory>

#include "trestle/train/progress/progress.h"

// Inside of the progress. Not installed.
namespace trestle::train {

std::unique_ptr<Progress> make_json_progress(std::ostream& out);

}  // namespace trestle::train
