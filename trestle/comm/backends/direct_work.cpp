#include "trestle/comm/backends/direct_work.h"

#include <exception>

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
  connection_->keeper().add(
      [connection = connection_.get(), message = message_] { finish(*connection, *message); });
}

void DirectWork::finish(BackendConnection& connection, Message& message) {
  const std::lock_guard lock(message.mutex);
  if (message.is_finished) return;
  try {
    for (const auto& work : message.works)
      connection.in_flight().wait(*work, connection.place().deadline);
    if (message.then) message.then();
  } catch (const std::exception& error) {
    message.failed = connection.failure_from(error, message.print, message.peer);
  }
  message.works.clear();
  message.tensors.clear();
  message.is_finished = true;
}

void DirectWork::wait() {
  if (!message_->is_finished) finish(*connection_, *message_);
  const std::lock_guard lock(message_->mutex);
  if (message_->failed) message_->failed->raise();
}

bool DirectWork::done() {
  if (!message_->is_finished) give_to_keeper();
  return message_->is_finished;
}

}  // namespace trestle::comm
