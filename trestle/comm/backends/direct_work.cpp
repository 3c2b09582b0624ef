#include "trestle/comm/backends/direct_work.h"

#include <exception>

#include "trestle/comm/backends/backend_calls.h"

namespace trestle::comm {

DirectWork::DirectWork(std::shared_ptr<BackendConnection> connection, const Fingerprint& print,
                       int peer, Works works, std::vector<at::Tensor> tensors,
                       std::function<void()> then)
    : connection_(std::move(connection)), message_(std::make_shared<Message>()) {
  message_->print = print;
  message_->peer = peer;
  message_->works = std::move(works);
  message_->tensors = std::move(tensors);
  message_->then = std::move(then);
}

DirectWork::~DirectWork() {
  if (!message_->is_finished) wait_elsewhere(&BackendConnection::keep);
}

void DirectWork::wait_elsewhere(void (BackendConnection::*run)(std::function<void()> job)) {
  if (has_waiter_.exchange(true)) return;
  (*connection_.*run)([connection = connection_.get(), message = message_] {
    finish(*connection, *message, connection->place().deadline, Late::Fails);
  });
}

bool DirectWork::finish(BackendConnection& connection, Message& message,
                        std::chrono::milliseconds time, Late late) {
  const auto end = std::chrono::steady_clock::now() + time;
  const std::unique_lock lock(message.mutex, end);
  if (message.is_finished) return true;
  if (!lock) return false;  // another thread waits in the backend
  try {
    for (const auto& work : message.works) connection.in_flight().wait(*work, time);
    if (message.then) message.then();
  } catch (const std::exception& error) {
    if (late == Late::Stays && is_timeout(error) && !connection.place().control->failure())
      return false;
    message.failed = connection.failure_from(error, message.print, message.peer);
  }
  message.works.clear();
  message.tensors.clear();
  message.is_finished = true;
  return true;
}

void DirectWork::wait() {
  while (!message_->is_finished)
    finish(*connection_, *message_, connection_->place().deadline, Late::Fails);
  if (message_->failed) message_->failed->raise();
}

bool DirectWork::wait_for(std::chrono::milliseconds time) {
  if (time >= connection_->place().deadline) return wait(), true;
  if (!message_->is_finished && !finish(*connection_, *message_, time, Late::Stays)) return false;
  if (message_->failed) message_->failed->raise();
  return true;
}

bool DirectWork::done() {
  if (!message_->is_finished) wait_elsewhere(&BackendConnection::watch);
  return message_->is_finished;
}

}  // namespace trestle::comm
