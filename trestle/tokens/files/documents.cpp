#include "trestle/tokens/files/documents.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/base/utf8.h"
#include "trestle/tokens/tokenizers/json_field.h"

namespace trestle::tokens {

namespace {

namespace fs = std::filesystem;

void add_folder(const fs::path& folder, const fs::path& out, std::vector<SourceFile>& found) {
  std::vector<fs::path> files;
  const bool out_exists = !out.empty() && fs::exists(out);
  for (auto at = fs::recursive_directory_iterator(folder); at != fs::end(at); ++at) {
    const fs::directory_entry& entry = *at;
    if (out_exists && entry.is_directory() && fs::equivalent(entry.path(), out))
      at.disable_recursion_pending();
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

std::string text_of(const nlohmann::json& line, const std::string& key, const std::string& place) {
  const auto found = line.find(key);
  if (found != line.end() && found->is_string()) return found->get<std::string>();
  std::vector<std::string> keys;
  for (const auto& [name, value] : line.items())
    if (value.is_string()) keys.push_back(name);
  const std::string hint = keys.empty()
                               ? text("The line needs a text under the key '", key, "'.")
                               : text("It has text under these keys: ", join(keys, ", "), ".");
  throw FormatError(text("has no text under the key '", key, "'"), {.file = place, .hint = hint});
}

void read_json_lines(std::string_view content, const std::string& file,
                     const PrepareOptions& options, const std::function<void(Document)>& take) {
  for (std::int64_t line = 1; !content.empty(); ++line) {
    const std::size_t end = std::min(content.find('\n'), content.size());
    const std::string words = trim(content.substr(0, end));
    content.remove_prefix(std::min(end + 1, content.size()));
    if (words.empty()) continue;
    const std::string place = text(file, ":", line);
    if (!is_utf8(words))
      throw FormatError("has bytes that are not UTF-8, which JSON needs", {.file = place});
    const nlohmann::json parsed = parse_json(words, place);
    if (!parsed.is_object())
      throw FormatError("is no JSON object",
                        {.file = place, .hint = "Each line is one, such as {\"text\": \"...\"}."});
    if (options.prompt_key.empty())
      take({.text = text_of(parsed, options.jsonl_key, place)});
    else
      take({.text = text_of(parsed, options.answer_key, place),
            .prompt = text_of(parsed, options.prompt_key, place)});
  }
}

void read_separated(std::string_view content, const std::string& separator,
                    const std::function<void(Document)>& take) {
  std::string document;
  while (!content.empty()) {
    const std::size_t size = std::min(content.find('\n'), content.size() - 1) + 1;
    std::string_view line = content.substr(0, size);
    content.remove_prefix(size);
    const std::string_view whole = line;
    if (line.ends_with('\n')) line.remove_suffix(1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line == separator)
      take({.text = std::exchange(document, {})});
    else
      document += whole;
  }
  take({.text = std::move(document)});
}

// All bytes of a pipe, a terminal or a FIFO. Waiting ends after a signal if the caller stops:
// poll() returns then, and a read would not.
std::string read_stream(int file, const std::string& name, const PrepareOptions& options) {
  std::string all;
  std::array<char, 1 << 16> chunk{};
  while (true) {
    pollfd waits{.fd = file, .events = POLLIN, .revents = 0};
    const bool waited = ::poll(&waits, 1, -1) >= 0;
    if (options.progress && !options.progress(static_cast<std::int64_t>(all.size()), 0))
      throw StateError("the preparation was stopped; nothing was written");
    if (!waited) continue;
    const ssize_t count = ::read(file, chunk.data(), chunk.size());
    if (count == 0) return all;
    if (count > 0)
      all.append(chunk.data(), static_cast<std::size_t>(count));
    else if (errno != EINTR && errno != EAGAIN)
      throw FileError(std::strerror(errno), {.file = name});
  }
}

std::string read_source(const fs::path& path, const PrepareOptions& options) {
  if (path == "-") return read_stream(STDIN_FILENO, "standard input", options);
  if (!fs::is_fifo(path) && !fs::is_character_file(path)) return read_file(path);
  // With O_NONBLOCK opening a FIFO does not wait for a writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) throw FileError(std::strerror(errno), {.file = path.string()});
  const std::shared_ptr<void> closes(nullptr, [file](void*) { ::close(file); });
  return read_stream(file, path.string(), options);
}

}  // namespace

std::vector<SourceFile> find_sources(const std::vector<std::string>& sources, const fs::path& out) {
  std::vector<SourceFile> found;
  for (const std::string& source : sources) {
    if (source == "-") {
      found.push_back({"-", 0});
    } else if (fs::is_directory(source)) {
      add_folder(source, out, found);
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
                    const std::function<void(Document)>& take) {
  const bool standard_input = file.path == "-", pairs = !options.prompt_key.empty();
  const bool json_lines = file.path.extension() == ".jsonl" || (standard_input && pairs);
  if (pairs && !json_lines)
    throw UsageError(
        "prompts and answers are read from .jsonl files only",
        {.file = file.path.string(),
         .hint = "Each line is an object such as {\"prompt\": ..., \"answer\": ...}."});
  std::string content = read_source(file.path, options);
  content.erase(0, content.size() - without_byte_order_mark(content, file.path.string()).size());
  if (json_lines) return read_json_lines(content, file.path.string(), options, take);
  if (!options.separator.empty()) return read_separated(content, options.separator, take);
  take({.text = std::move(content)});
}

}  // namespace trestle::tokens
