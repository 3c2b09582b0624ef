#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace trestle::comm {

class Connection;

// Aborts one connection. It may outlive the connection and be called while the connection is
// destroyed: retire() makes later calls do nothing.
class ConnectionAborter {
 public:
  explicit ConnectionAborter(Connection& connection) : connection_(&connection) {}
  void abort(const std::string& reason);
  void retire();  // waits for an abort() that is running

 private:
  std::mutex mutex_;
  Connection* connection_;
};

// The connections of a world, to be aborted when the world fails. It holds weak pointers: the
// thread that aborts a connection must never become its last owner.
class AbortList {
 public:
  void add(std::shared_ptr<ConnectionAborter> aborter);
  void abort_all(const std::string& reason) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<ConnectionAborter>> aborters_;
};

}  // namespace trestle::comm
