#pragma once

#include <string>

// Adds context to an exception on its way to the caller and keeps its type.
namespace trestle {

// Call it in a catch block: rethrows the current exception with `context` added to its message.
//
//   try { work(); } catch (...) { rethrow_with_context("in stage 1, micro-batch 2"); }
//
// trestle::Error and c10::Error (and all derived classes) gain a line and keep their object.
// std::runtime_error, logic_error, invalid_argument, out_of_range and domain_error are thrown as a
// new object of the same type with a longer text. All other types, including a user's own, are
// rethrown unchanged.
[[noreturn]] void rethrow_with_context(const std::string& context);

}  // namespace trestle
