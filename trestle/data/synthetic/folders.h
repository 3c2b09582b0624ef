#pragma once

#include <filesystem>
#include <system_error>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

// Inside of the synthesis. Not installed.
namespace trestle::data {

// Makes a folder and those above it; FileError with the system's reason when that fails.
inline void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw FileError(text("cannot make the folder: ", error.message()), {.file = folder.string()});
  }
}

}  // namespace trestle::data
