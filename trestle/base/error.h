#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

// The one exception family. Every message says what happened, where, with which numbers, and what
// to do about it.
//
//   throw trestle::UsageError("balance [12, 9] covers 21 layers, the model has 22",
//                             {.hint = "Leave 'balance' out to have it measured."});
namespace trestle {

// Where something went wrong. Leave out what is not known.
struct Where {
  std::string file = {};          // a file or folder of the user's, with ":line" where there is one
  std::string layer = {};         // the layer's name in the unsplit model
  std::optional<int> rank = {};   // rank of the schedule's table
  std::optional<int> stage = {};  // pipeline stage
  std::optional<int> micro_batch = {};  // micro-batch of the step
  std::string hint = {};                // what to do: one sentence, shown last
};

// Base of all errors that trestle throws itself. what() is the whole message, ready to be shown to
// a person.
class Error : public std::runtime_error {
 public:
  explicit Error(std::string_view what, Where where = {});

  const char* what() const noexcept override { return message_.c_str(); }
  const Where& where() const noexcept { return where_; }

  // Appends a line to the message: used where an error passes through a place that knows more about
  // it.
  void add_context(std::string_view context);

 private:
  std::string message_;
  Where where_;
};

// The caller asked for something that cannot be: a misspelt key, a balance that does not sum, a
// missing folder. The command line turns it into exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Bytes from outside (image, IDX, CSV, recipe, weights) are not what they should be.
class FormatError : public Error {
 public:
  using Error::Error;
};

// The operating system refused: no such file, disk full, no permission.
class FileError : public Error {
 public:
  using Error::Error;
};

// Somebody waited longer than the deadline allows.
class DeadlineError : public Error {
 public:
  using Error::Error;
};

// A library call in the wrong order, or twice: for example a second backward through a finished
// pipeline.
class StateError : public Error {
 public:
  using Error::Error;
};

}  // namespace trestle
