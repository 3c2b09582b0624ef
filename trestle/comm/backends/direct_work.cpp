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
  if (!message_->is_finished) give_to_keeper();
}

void DirectWork::give_to_keeper() {
  if (is_kept_.exchange(true)) return;
  connection_->keeper().add([connection = connection_.get(), message = message_] {
    finish(*connection, *message, connection->place().deadline, Late::Fails);
  });
}

void DirectWork::finish(BackendConnection& connection, Message& message,
                        std::chrono::milliseconds time, Late late) {
  const std::lock_guard lock(message.mutex);
  if (message.is_finished) return;
  try {
    for (const auto& work : message.works) connection.in_flight().wait(*work, time);
    if (message.then) message.then();
  } catch (const std::exception& error) {
    if (late == Late::Stays && is_timeout(error) && !connection.place().control->failure()) return;
    message.failed = connection.failure_from(error, message.print, message.peer);
  }
  message.works.clear();
  message.tensors.clear();
  message.is_finished = true;
}

void DirectWork::wait() {
  if (!message_->is_finished)
    finish(*connection_, *message_, connection_->place().deadline, Late::Fails);
  const std::lock_guard lock(message_->mutex);
  if (message_->failed) message_->failed->raise();
}

bool DirectWork::wait_for(std::chrono::milliseconds time) {
  if (time >= connection_->place().deadline) return wait(), true;
  if (!message_->is_finished) finish(*connection_, *message_, time, Late::Stays);
  const std::lock_guard lock(message_->mutex);
  if (message_->failed) message_->failed->raise();
  return message_->is_finished;
}

bool DirectWork::done() {
  if (!message_->is_finished) give_to_keeper();
  return message_->is_finished;
}

}  // namespace trestle::comm
