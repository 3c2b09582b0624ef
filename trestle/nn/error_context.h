#pragma once

#include <string>

// An exception on its way to the caller says where it has been, and stays what it is.
namespace trestle::nn {

// To be called in a catch block: throws the exception that is being handled again, its message
// followed by `context`.
//
//   try { work(); } catch (...) { rethrow_with_context("in stage 1, micro-batch 2"); }
//
// trestle::Error and c10::Error (and all derived from them) gain a line and keep their object.
// std::runtime_error, logic_error, invalid_argument, out_of_range and domain_error are thrown anew,
// as the same type with a longer text. All other types, a user's own among them, go on untouched.
[[noreturn]] void rethrow_with_context(const std::string& context);

}  // namespace trestle::nn
