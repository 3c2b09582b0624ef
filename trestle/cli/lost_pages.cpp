#include "trestle/cli/lost_pages.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "trestle/cli/exit_codes.h"

namespace trestle::cli {

namespace {

// Only system calls that a signal handler may make: no memory is allocated.
void print_plainly(std::string_view words) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, words.data(), words.size());
}

// Reads a hexadecimal number and removes it and the character after it.
std::uintptr_t take_hexadecimal(std::string_view& line) {
  std::uintptr_t value = 0;
  while (!line.empty()) {
    const char c = line.front();
    line.remove_prefix(1);
    if (c >= '0' && c <= '9')
      value = value * 16 + static_cast<std::uintptr_t>(c - '0');
    else if (c >= 'a' && c <= 'f')
      value = value * 16 + static_cast<std::uintptr_t>(c - 'a' + 10);
    else
      break;
  }
  return value;
}

// "7f01c000-7f02c000 rw-p 00000000 08:01 1234   /path": the path if the range has the address.
std::string_view path_in(std::string_view line, std::uintptr_t address) {
  const std::uintptr_t begin = take_hexadecimal(line), end = take_hexadecimal(line);
  const auto path = line.find('/');
  if (address < begin || address >= end || path == std::string_view::npos) return {};
  return line.substr(path);
}

// Prints the name of the file that is mapped at the address.
void print_mapped_file(std::uintptr_t address) {
  constexpr std::string_view unknown = "a mapped file";
  const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  static std::array<char, 8192> line;  // a signal's stack may be small
  std::size_t length = 0;
  std::array<char, 512> some{};
  for (ssize_t got = 0; maps >= 0 && (got = read(maps, some.data(), some.size())) > 0;) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(got); ++i) {
      if (some[i] != '\n') {
        if (length < line.size()) line[length++] = some[i];
        continue;
      }
      const std::string_view path = path_in({line.data(), length}, address);
      if (!path.empty()) return print_plainly(path);
      length = 0;
    }
  }
  print_plainly(unknown);
}

void on_bus_error(int, siginfo_t* about, void*) {
  print_plainly("\ntrestle: ");
  print_mapped_file(reinterpret_cast<std::uintptr_t>(about->si_addr));
  print_plainly(
      ": could not be read any more: the disk failed, or a program made the file shorter while it "
      "was in use\n  Write new weights to another file and rename that one, or use a copy.\n");
  _exit(failed);
}

}  // namespace

void report_lost_pages() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_RESETHAND;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace trestle::cli
