#pragma once

#include <vector>

#include "trestle/checkpoint/weights_file.h"

// Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// Gives tensors the pages of a mapped file as their memory, where a file has their bytes in the
// same order and type. The unit is a storage: the reads into it must fill it without holes from one
// range of one file, such as the adjacent rows of queries, keys and values that are one weight of
// the model. The range must begin at a multiple of 64 bytes, like the memory of every tensor:
// products would round otherwise. Returns the other reads.
std::vector<WeightsFile::Read> share_pages(const WeightsFile& file,
                                           const std::vector<WeightsFile::Read>& reads);

}  // namespace trestle::checkpoint
