#pragma once

#include <filesystem>
#include <vector>

// The files that come with trestle, such as recipes. Not installed.
namespace trestle {

// The folders in which a name of such a file is searched: the working folder, `name` in it, and
// `from_program` seen from the folder of the running program.
std::vector<std::filesystem::path> folders_of_installed(const std::filesystem::path& name,
                                                        const std::filesystem::path& from_program);

}  // namespace trestle
