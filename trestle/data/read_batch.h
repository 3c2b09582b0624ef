#pragma once

#include <cstdint>
#include <span>

#include "trestle/data/loader.h"

// Internal to data.
namespace trestle::data {

// Reads these examples of an epoch one after the other into one batch. The caller sets the batch's
// position in the epoch. An exception gains the number of its example.
Batch read_batch(const Dataset& dataset, std::span<const std::int64_t> examples, std::int64_t epoch,
                 Part part, const LoaderOptions& options);

}  // namespace trestle::data
