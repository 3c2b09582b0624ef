#pragma once

#include <string>

#include "trestle/train/calibrate/calibrate.h"

// The output of `trestle calibrate`.
namespace trestle::cli {

// The measurements in lines of at most `columns` columns: the best rates, and the messages of the
// smallest and the largest size.
std::string calibration_words(const train::Calibration& measured, int columns);

// One object: "measured_on", "figures" with value, spread, is and from, "products", "messages",
// "copies", "optimizers", "notes", "file" and "seconds".
std::string calibration_json(const train::Calibration& measured, const std::string& file);

}  // namespace trestle::cli
