#pragma once

#include <string>
#include <utility>

namespace trestle::launch {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return number_; }
  bool open() const { return number_ >= 0; }
  int release() { return std::exchange(number_, -1); }
  void reset();

 private:
  int number_ = -1;
};

struct Pipe {
  Descriptor read, write;
};

// All descriptors have FD_CLOEXEC, and none is 0, 1 or 2: these may be closed here, and a rank
// replaces them. move_above_stdio() throws FileError with `what` if `number` is negative.
Descriptor move_above_stdio(int number, const std::string& what);
Pipe make_pipe(const std::string& what);
Descriptor open_file(const std::string& path, int flags);

void set_non_blocking(const Descriptor& descriptor);

// Safe between fork() and exec().
void close_all_but(int kept);

// Throws FileError with the text of errno: "a pipe for rank 2: Too many open files".
[[noreturn]] void throw_errno(const std::string& what);

}  // namespace trestle::launch
