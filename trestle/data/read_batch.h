#pragma once

#include <cstdint>
#include <span>

#include "trestle/data/loader.h"

// Inside of data.
namespace trestle::data {

// These examples of an epoch, read one after the other, as one batch; its place in the epoch is left
// for the caller to say. An error names the example in which it happened.
Batch read_batch(const Dataset& dataset, std::span<const std::int64_t> examples, std::int64_t epoch,
                 Part part, const LoaderOptions& options);

}  // namespace trestle::data
