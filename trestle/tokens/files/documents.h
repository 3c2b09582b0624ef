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

// The files of the sources, without those in the folder `out`: a tokenizer there has a merges.txt.
// Throws UsageError for a missing source, and for folders without text.
std::vector<SourceFile> find_sources(const std::vector<std::string>& sources,
                                     const std::filesystem::path& out);

struct Document {
  std::string text;         // of a pair: its answer
  std::string prompt = {};  // before the text, and no target of the loss
};

// Calls `take` with each document of a file, in order.
void read_documents(const SourceFile& file, const PrepareOptions& options,
                    const std::function<void(Document)>& take);

}  // namespace trestle::tokens
