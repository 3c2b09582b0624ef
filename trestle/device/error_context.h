#pragma once

#include <string>

// Adds context to an exception on its way to the caller and keeps its type.
namespace trestle {

// Call it in a catch block: rethrows the current exception with `context` added to its message.
//
//   try { work(); } catch (...) { rethrow_with_context("in stage 1, micro-batch 2"); }
//
// trestle::Error and c10::Error (and all derived classes) gain a line and keep their object.
// Exceptions of the standard library are thrown as a new object with a longer text. It has the same
// type if that holds only a text, as std::out_of_range does; else its class is derived from that of
// std::bad_alloc, std::filesystem::filesystem_error and so on, with the same data. All other types,
// including a user's own, are rethrown unchanged.
[[noreturn]] void rethrow_with_context(const std::string& context);

}  // namespace trestle
