#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace trestle::cli {

// Reads the lines of a file descriptor, such as the standard input. It reads nothing behind what it
// returns but into its own buffer: use one reader for a descriptor.
class LineReader {
 public:
  explicit LineReader(int descriptor) : descriptor_(descriptor) {}

  // The next line without its end; nothing at the end of the input. While no byte arrives,
  // `while_waiting` is called after each `interval`. It may throw. An empty one is not called.
  std::optional<std::string> next(std::chrono::milliseconds interval = {},
                                  const std::function<void()>& while_waiting = {});

 private:
  int descriptor_;
  std::string held_;
  bool at_end_ = false;
};

}  // namespace trestle::cli
