#pragma once

#include <memory>
#include <utility>

#include "trestle/comm/connection.h"
#include "trestle/comm/group.h"

namespace trestle::comm {

class Group::Impl {
 public:
  Impl(std::shared_ptr<Connection> connection, Check check)
      : connection_(std::move(connection)), check_(check) {}

  Connection& connection() const { return *connection_; }
  const std::shared_ptr<Connection>& shared_connection() const { return connection_; }
  Check check() const { return check_; }
  const Connection::Place& place() const { return connection_->place(); }
  int size() const { return connection_->size(); }

 private:
  const std::shared_ptr<Connection> connection_;
  const Check check_;
};

}  // namespace trestle::comm
