#pragma once

#include <exception>
#include <vector>

#include "trestle/gradient_norm/stage_norms.h"
#include "trestle/pipeline/transport/stage_value.h"
#include "trestle/schedule/action.h"
#include "trestle/schedule/routes.h"

// How tensors move from rank to rank. The executor and the stages use this interface only: within
// one process it is a LocalTransport, between ranks a DistributedTransport. One object serves one
// step.
namespace trestle::pipeline {

using schedule::Transfer;

// The values that one route carries for one micro-batch: activations, or their gradients.
using Message = std::vector<StageValue>;

// Thrown on ranks that stop because another rank failed. Never reaches the caller.
struct Cancelled {};

class StageTransport {
 public:
  StageTransport() = default;
  virtual ~StageTransport() = default;
  StageTransport(const StageTransport&) = delete;
  StageTransport& operator=(const StageTransport&) = delete;

  // A future receive and its device.
  struct Expected {
    Transfer transfer;
    at::Device consumer = at::kCPU;
  };
  // Announces the messages that `rank` will receive, in the order of its receive() calls, so that
  // their receives can be posted now.
  virtual void expect(int rank, std::vector<Expected> receives) = 0;

  // Starts sending a message. Called in the thread, and with the current streams, that made its
  // tensors. Never waits. The tensors must not change before flush() returns.
  virtual void send(const Transfer& transfer, Message message, at::Device producer) = 0;

  // Waits for the message and moves it to `consumer`. Throws Cancelled, or DeadlineError that names
  // both ranks.
  virtual Message receive(const Transfer& transfer, at::Device consumer) = 0;

  // Whether receive() would return at once. Throws Cancelled after cancel().
  virtual bool arrived(const Transfer& transfer) const = 0;

  // NORM: adds the norms of `rank`, once, after all its other messages. May wait for all ranks.
  virtual void give_norms(int rank, std::vector<gradient_norm::StageNorm> own) = 0;
  // Whether the norms of all ranks are here. Throws Cancelled after cancel().
  virtual bool has_norms() const = 0;
  // Waits for the norms of all ranks. Returns them as gradient_norm::in_stage_order() does. Throws
  // Cancelled, or DeadlineError.
  virtual std::vector<optim::GradientNorm> norms() = 0;

  // Returns when all other ranks have received what `rank` sent.
  virtual void flush(int rank) = 0;

  // Records the last action that `rank` finished, for the message of a DeadlineError.
  virtual void finished(int rank, const schedule::Action& action) = 0;

  // Stores the first failure and wakes all waiting ranks, which throw Cancelled.
  virtual void cancel(std::exception_ptr failure) = 0;
  virtual std::exception_ptr failure() const = 0;
};

}  // namespace trestle::pipeline
