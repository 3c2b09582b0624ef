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

// Closed where the process becomes another program; never 0, 1 or 2, which may be closed, and which a rank
// gets anew. `what` is for the FileError where `number` is below 0.
Descriptor above_standard(int number, const std::string& what);
Pipe make_pipe(const std::string& what);
Descriptor open_file(const std::string& path, int flags);

void set_non_blocking(const Descriptor& descriptor);

// Safe behind fork().
void close_all_but(int kept);

// Throws FileError: "a pipe ...: Too many open files", by errno.
[[noreturn]] void refused(const std::string& what);

}  // namespace trestle::launch
