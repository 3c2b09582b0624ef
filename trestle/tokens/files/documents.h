#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trestle/tokens/files/prepare.h"

// The documents of text files. Internal to trestle/tokens.
namespace trestle::tokens {

struct SourceFile {
  std::filesystem::path path;  // "-": standard input
  std::int64_t bytes = 0;
};

// The files of the sources. Throws UsageError for a missing one, and for folders without text.
std::vector<SourceFile> find_sources(const std::vector<std::string>& sources);

// Calls `take` with each document of a file, in order.
void read_documents(const SourceFile& file, const PrepareOptions& options,
                    const std::function<void(std::string)>& take);

}  // namespace trestle::tokens
