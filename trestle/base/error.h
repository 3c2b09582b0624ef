#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

// The exceptions of trestle. Every message names the problem, its place and its numbers; the hint
// names a remedy.
//
//   throw trestle::UsageError("balance [12, 9] covers 21 layers, the model has 22",
//                             {.hint = "Leave 'balance' out to have it measured."});
namespace trestle {

// The place of an error. Leave out what is unknown.
struct Where {
  std::string file = {};                // the user's file or folder, with ":line" if known
  std::string layer = {};               // the layer's name in the unsplit model
  std::optional<int> rank = {};         // rank of the schedule's table
  std::optional<int> stage = {};        // pipeline stage
  std::optional<int> micro_batch = {};  // micro-batch of the step
  std::string hint = {};                // the remedy in one sentence, shown last
};

// Base of all errors that trestle throws. what() is the whole message, ready to be shown to a user.
class Error : public std::runtime_error {
 public:
  explicit Error(std::string_view what, Where where = {});

  const char* what() const noexcept override { return message_.c_str(); }
  const Where& where() const noexcept { return where_; }

  // Appends a line to the message. Callers add details that the throwing code did not have.
  void add_context(std::string_view context);

 private:
  std::string message_;
  Where where_;
};

// An invalid request: a misspelt key, a balance with a wrong sum, a missing folder. The command
// line exits with code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Invalid input data: an image, IDX, CSV, recipe or weights file.
class FormatError : public Error {
 public:
  using Error::Error;
};

// The operating system reported an error: no such file, disk full, no permission.
class FileError : public Error {
 public:
  using Error::Error;
};

// A wait exceeded its deadline.
class DeadlineError : public Error {
 public:
  using Error::Error;
};

// A library call in the wrong order, or a second time: for example a second backward through the
// same pipeline output.
class StateError : public Error {
 public:
  using Error::Error;
};

}  // namespace trestle
