#include "trestle/comm/quiet_log.h"

#include <c10/util/Logging.h>

#include <atomic>
#include <cstdlib>

namespace trestle::comm {

#ifdef C10_USE_GLOG
QuietLog::QuietLog() = default;
QuietLog::~QuietLog() = default;
#else
// Of several at once each puts back what it changed itself, so that none leaves the log silent.
QuietLog::QuietLog() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr) return;
  int usual = c10::GLOG_WARNING;
  is_quiet_ =
      std::atomic_ref(FLAGS_caffe2_log_level).compare_exchange_strong(usual, c10::GLOG_FATAL);
}

QuietLog::~QuietLog() {
  int quiet = c10::GLOG_FATAL;
  if (is_quiet_)
    std::atomic_ref(FLAGS_caffe2_log_level).compare_exchange_strong(quiet, c10::GLOG_WARNING);
}
#endif

}  // namespace trestle::comm
