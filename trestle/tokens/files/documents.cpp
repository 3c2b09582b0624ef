#include "trestle/tokens/files/documents.h"

#include <algorithm>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle::tokens {

namespace {

namespace fs = std::filesystem;

void add_folder(const fs::path& folder, std::vector<SourceFile>& found) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string ending = entry.path().extension().string();
    if (entry.is_regular_file() && (ending == ".txt" || ending == ".md" || ending == ".jsonl"))
      files.push_back(entry.path());
  }
  if (files.empty())
    throw UsageError(text(folder.string(), ": has no .txt, .md or .jsonl file"),
                     {.hint = "Name other files by themselves."});
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files)
    found.push_back({file, static_cast<std::int64_t>(fs::file_size(file))});
}

void read_json_lines(const std::string& content, const std::string& file, const std::string& key,
                     const std::function<void(std::string)>& take) {
  std::size_t begin = 0;
  for (std::int64_t line = 1; begin < content.size(); ++line) {
    const std::size_t end = std::min(content.find('\n', begin), content.size());
    const std::string words = trim(std::string_view(content).substr(begin, end - begin));
    begin = end + 1;
    if (words.empty()) continue;
    const auto parsed = nlohmann::json::parse(words, nullptr, false);
    const std::string place = text(file, ":", line);
    if (!parsed.is_object()) throw FormatError("is no JSON object", {.file = place});
    const auto found = parsed.find(key);
    if (found == parsed.end() || !found->is_string()) {
      std::vector<std::string> keys;
      for (const auto& [name, value] : parsed.items()) keys.push_back(name);
      throw FormatError(
          text("has no text under the key '", key, "'"),
          {.file = place, .hint = "Choose the key of the text: " + join(keys, ", ") + "."});
    }
    take(found->get<std::string>());
  }
}

void read_separated(const std::string& content, const std::string& separator,
                    const std::function<void(std::string)>& take) {
  std::string document;
  std::size_t begin = 0;
  while (begin < content.size()) {
    const std::size_t end = std::min(content.find('\n', begin), content.size());
    std::string_view line = std::string_view(content).substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line == separator) {
      take(std::exchange(document, {}));
    } else {
      document += line;
      document += '\n';
    }
  }
  take(std::move(document));
}

}  // namespace

std::vector<SourceFile> find_sources(const std::vector<std::string>& sources) {
  std::vector<SourceFile> found;
  for (const std::string& source : sources) {
    if (source == "-") {
      found.push_back({"-", 0});
    } else if (fs::is_directory(source)) {
      add_folder(source, found);
    } else if (fs::exists(source)) {
      std::error_code none;
      const auto bytes = fs::file_size(source, none);
      found.push_back({source, none ? 0 : static_cast<std::int64_t>(bytes)});
    } else {
      throw UsageError(text(source, ": there is no such file or folder"));
    }
  }
  if (found.empty()) throw UsageError("there is no text to prepare");
  return found;
}

void read_documents(const SourceFile& file, const PrepareOptions& options,
                    const std::function<void(std::string)>& take) {
  std::string content;
  if (file.path == "-")
    content.assign(std::istreambuf_iterator<char>(std::cin), {});
  else
    content = read_file(file.path);
  if (file.path.extension() == ".jsonl")
    return read_json_lines(content, file.path.string(), options.jsonl_key, take);
  if (!options.separator.empty()) return read_separated(content, options.separator, take);
  take(std::move(content));
}

}  // namespace trestle::tokens
