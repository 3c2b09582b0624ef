#pragma once

#include <string>

// The program's standard output: output that cannot be written is an error.
namespace trestle::cli {

// Opens /dev/null for each of 0, 1 and 2 that is closed, so that no file of the program gets one of
// these numbers, and then the program's output.
void open_standard_streams();

// Flushes; returns whether all output so far was written.
bool output_arrives();

// The reason if it was not: "the output could not be written: No space left on device". Empty if
// the reader has closed the pipe, as `head` does: that is no error to report.
std::string why_output_was_lost();

}  // namespace trestle::cli
