#include "trestle/comm/processes/log_silencer.h"

#include <c10/util/Logging.h>

#include <atomic>
#include <cstdlib>

namespace trestle::comm {

#ifdef C10_USE_GLOG
LogSilencer::LogSilencer() = default;
LogSilencer::~LogSilencer() = default;
#else
// Each of several silencers restores only its own change, so that the log is never left silent.
LogSilencer::LogSilencer() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr) return;
  int usual = c10::GLOG_WARNING;
  is_quiet_ =
      std::atomic_ref(FLAGS_caffe2_log_level).compare_exchange_strong(usual, c10::GLOG_FATAL);
}

LogSilencer::~LogSilencer() {
  int quiet = c10::GLOG_FATAL;
  if (is_quiet_)
    std::atomic_ref(FLAGS_caffe2_log_level).compare_exchange_strong(quiet, c10::GLOG_WARNING);
}
#endif

}  // namespace trestle::comm
