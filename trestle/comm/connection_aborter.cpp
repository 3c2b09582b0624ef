#include "trestle/comm/connection_aborter.h"

#include <utility>

#include "trestle/comm/connection.h"

namespace trestle::comm {

void ConnectionAborter::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (connection_) connection_->abort(reason);
}

void ConnectionAborter::retire() {
  const std::lock_guard lock(mutex_);
  connection_ = nullptr;
}

void AbortList::add(std::shared_ptr<ConnectionAborter> aborter) {
  const std::lock_guard lock(mutex_);
  std::erase_if(aborters_, [](const auto& held) { return held.expired(); });
  aborters_.push_back(std::move(aborter));
}

void AbortList::abort_all(const std::string& reason) const {
  std::vector<std::weak_ptr<ConnectionAborter>> aborters;
  {
    const std::lock_guard lock(mutex_);
    aborters = aborters_;
  }
  for (const auto& held : aborters) {
    if (const auto aborter = held.lock()) aborter->abort(reason);
  }
}

}  // namespace trestle::comm
