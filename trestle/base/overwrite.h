#pragma once

#include <filesystem>
#include <string>
#include <vector>

// The one rule for files that a caller names as a place for results: an existing file is refused
// before any work begins, unless the caller allows its replacement.
namespace trestle {

enum class Overwrite { Refuse, Allow };

// Throws UsageError if one of the files exists and `overwrite` is Refuse. `flag` is the flag or
// option that named the place. Devices and pipes, such as /dev/stdout, have nothing to lose.
//
//   refuse_overwriting({"masks/a_mask.png", "masks/b_mask.png"}, Overwrite::Refuse, "--out");
//
// "--out: 2 of 2 files exist already: masks/a_mask.png, masks/b_mask.png".
void refuse_overwriting(const std::vector<std::filesystem::path>& files, Overwrite overwrite,
                        const std::string& flag);

}  // namespace trestle
