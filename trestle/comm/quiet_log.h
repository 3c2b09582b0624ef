#pragma once

namespace trestle::comm {

// While it lives, libtorch logs nothing in this process: a store whose holder was stopped or killed
// makes it complain at length, with stack traces, and then throw an exception, of which we make a
// line that says what happened. Leaves everything as it is where the user has set
// TORCH_CPP_LOG_LEVEL, or a level of their own.
class QuietLog {
 public:
  QuietLog();
  ~QuietLog();
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;

 private:
  bool is_quiet_ = false;
};

}  // namespace trestle::comm
