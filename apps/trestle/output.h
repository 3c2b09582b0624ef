#pragma once

#include <cstdint>
#include <functional>
#include <string>

// The standard output of the program: words that do not arrive are an error.
namespace trestle::app {

// Sees to it that 0, 1 and 2 are open, so that no file of the program's own gets one of these
// numbers and then the words that were meant for a screen.
void open_standard_streams();

// Whether everything that was printed so far has arrived. Flushes.
bool output_arrives();

// Why it did not: "the output could not be written: No space left on device". Empty where a reader
// simply has gone, as `head` does: nobody wants to know.
std::string why_output_was_lost();

// A count "<verb> 3/16" that moves in place, for what takes a while; nothing where the output is no
// terminal.
std::function<void(std::int64_t, std::int64_t)> counter(const std::string& verb);

}  // namespace trestle::app
