#pragma once

namespace trestle::comm {

// While it lives, libtorch logs nothing in this process. If the process that hosts a store was
// stopped or killed, libtorch logs long stack traces before it throws; trestle turns the exception
// into one line. Does nothing if the user has set TORCH_CPP_LOG_LEVEL or another log level.
class LogSilencer {
 public:
  LogSilencer();
  ~LogSilencer();
  LogSilencer(const LogSilencer&) = delete;
  LogSilencer& operator=(const LogSilencer&) = delete;

 private:
  bool is_quiet_ = false;
};

}  // namespace trestle::comm
