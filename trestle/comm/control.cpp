#include "trestle/comm/control.h"

#include "trestle/base/text.h"
#include "trestle/comm/connection.h"

namespace trestle::comm {

void BreakList::add(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard lock(mutex_);
  std::erase_if(connections_, [](const auto& held) { return held.expired(); });
  connections_.push_back(connection);
}

void BreakList::break_all(const std::string& reason) const {
  std::vector<std::weak_ptr<Connection>> connections;
  {
    const std::lock_guard lock(mutex_);
    connections = connections_;
  }
  for (const auto& held : connections) {
    if (const auto connection = held.lock()) connection->break_off(reason);
  }
}

void Control::attach(const std::shared_ptr<Connection>& connection) {
  breaks_->add(connection);
  if (const auto reason = failure()) connection->break_off(*reason);
}

std::string statuses(const Control& control, const std::vector<int>& ranks, int but) {
  constexpr std::size_t most = 8;  // a message is read by a person
  std::vector<std::string> parts;
  for (const int rank : ranks) {
    if (rank == but) continue;
    if (parts.size() == most) {
      parts.push_back("...");
      break;
    }
    parts.push_back(text("rank ", rank, ": ", control.status_of(rank)));
  }
  return join(parts, "; ");
}

}  // namespace trestle::comm
