#pragma once

#include <filesystem>
#include <string>

#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/checkpoint/files/foreign/deepspeed_pickles.h"

// Internal to trestle.
namespace trestle::checkpoint {

// Converts a checkpoint that trestle saved into DeepSpeed's form: the folder `root`/`tag` for
// `about.ranks` ranks, and `root`/latest. `about.parameters` must name every parameter of the
// checkpoint: its other weights are buffers.
//
// All ranks of `ranks` call it with the same folders on a shared file system, and share the work.
// An error of one is thrown on all: UsageError for weights that are stepped and not fp32, for
// parameters with different numbers of steps, for several groups that lack one or that are beside
// frozen parameters at stage 0 in fp32, and for a folder `root`/`tag` of something else; FileError
// if the system refuses. The old folder then remains.
void write_deepspeed_folder(const CheckpointFolder& from, const std::filesystem::path& root,
                            const std::string& tag, const DeepspeedPickle& about,
                            const SaveRanks& ranks = {});

}  // namespace trestle::checkpoint
