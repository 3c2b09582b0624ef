#pragma once

#include <exception>
#include <vector>

#include "trestle/pipeline/norm_parts.h"
#include "trestle/pipeline/stage_value.h"
#include "trestle/schedule/action.h"
#include "trestle/schedule/routes.h"

// How tensors pass from rank to rank. The executor and the stages do not know which transport they
// have: within one process (local_transport.h) or between ranks (distributed_transport.h). One object
// serves one step.
namespace trestle::pipeline {

using schedule::Transfer;

// What one route carries for one micro-batch: activations, or their gradients.
using Message = std::vector<StageValue>;

// Thrown in the ranks that only stop because another one failed; never reaches the caller.
struct Cancelled {};

class StageTransport {
 public:
  StageTransport() = default;
  virtual ~StageTransport() = default;
  StageTransport(const StageTransport&) = delete;
  StageTransport& operator=(const StageTransport&) = delete;

  // A receive that is to come, and the device that it is for.
  struct Expected {
    Transfer transfer;
    at::Device consumer = at::kCPU;
  };
  // Says which messages `rank` will receive, in the order in which it will ask for them; what can be
  // posted is posted now.
  virtual void expect(int rank, std::vector<Expected> receives) = 0;

  // Puts a message on its way, in the thread, and with the current streams, that made the tensors.
  // Never waits. Nobody may write to them before flush().
  virtual void send(const Transfer& transfer, Message message, at::Device producer) = 0;

  // Waits for the message and moves it to `consumer`. Throws DeadlineError that names who waited
  // for whom, or Cancelled.
  virtual Message receive(const Transfer& transfer, at::Device consumer) = 0;

  // Is there something to receive()? Throws Cancelled after cancel().
  virtual bool arrived(const Transfer& transfer) const = 0;

  // NORM: `rank` adds its part, once, behind all that it sends and receives. May wait for the other ranks.
  virtual void give_norms(int rank, std::vector<NormPart> own) = 0;
  // Are those of all ranks there? Throws Cancelled after cancel().
  virtual bool has_norms() const = 0;
  // Waits for them. Throws DeadlineError, or Cancelled. As in_order() has them.
  virtual std::vector<optim::GradientNorm> norms() = 0;

  // Returns when the other ranks have what `rank` sent.
  virtual void flush(int rank) = 0;

  // Says what `rank` finished last, for the message of a DeadlineError.
  virtual void finished(int rank, const schedule::Action& action) = 0;

  // The first failure wins; every waiting rank is woken and throws Cancelled.
  virtual void cancel(std::exception_ptr failure) = 0;
  virtual std::exception_ptr failure() const = 0;
};

}  // namespace trestle::pipeline
