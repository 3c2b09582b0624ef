// What each kind of action does: the only place where a schedule's words become work.
#include <ATen/Functions.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/pipeline/executor.h"
#include "trestle/pipeline/micro_batch.h"

namespace trestle::pipeline {
namespace {

using schedule::Action;
using schedule::Kind;

nn::RunKey key_of(const Flight& flight, int micro_batch) {
  return {.seed = flight.seed, .step = flight.step, .micro_batch = micro_batch};
}

std::size_t slot_of(const std::vector<ValueId>& values, ValueId value) {
  const auto found = std::find(values.begin(), values.end(), value);
  if (found == values.end())
    throw StateError("internal: a value travels to a stage that does not know it");
  return found - values.begin();
}

int main_route(const Flight& flight, int from_stage) {
  const auto& routes = flight.cut.routes;
  for (std::size_t r = 0; r < routes.size(); ++r) {
    if (!routes[r].skip && routes[r].from_stage == from_stage) return static_cast<int>(r);
  }
  throw UsageError(text("the table moves something from stage ", from_stage, " to ", from_stage + 1,
                        " on the main lane, but the model has nothing to move there"));
}

// The table and the cut list the same routes, but a table of the user's may list them in another
// order.
int skip_route(const Flight& flight, const Action& action) {
  const auto& wanted = flight.table.routes.at(action.route);
  const auto& routes = flight.cut.routes;
  const auto found = std::find(routes.begin(), routes.end(), wanted);
  if (found == routes.end()) {
    throw UsageError(text("the table has a skip route '", wanted.name, "' from stage ",
                          wanted.from_stage, " to ", wanted.to_stage, " that the model has not"));
  }
  return static_cast<int>(found - routes.begin());
}

// Hands the values of one route to the board, from what F made.
void send_activation(Flight& flight, int route, int micro_batch, int index) {
  const Stage& stage = flight.stages[index];
  Outbox& outbox = flight.activations[index][micro_batch];
  Message message;
  for (const auto& value : flight.cut.route_values[route]) {
    const auto slot = slot_of(stage.plan().outputs, value);
    message.values.push_back(outbox.values.at(slot));
    message.requires_grad.push_back(outbox.requires_grad.at(slot));
  }
  if (--outbox.sends_left == 0) outbox = Outbox();
  flight.board.send(route, micro_batch, Direction::Activation, std::move(message), stage.device());
}

Pass& prepared_pass(Flight& flight, const Stage& stage, int index, int micro_batch) {
  Pass& pass = flight.passes[index][micro_batch];
  if (pass.inputs.empty()) {
    pass.inputs.resize(stage.plan().inputs.size());
    pass.input_requires_grad.resize(stage.plan().inputs.size(), false);
  }
  return pass;
}

void receive_activation(Flight& flight, int route, int micro_batch, int index) {
  const Stage& stage = flight.stages[index];
  Message message = flight.board.receive(route, micro_batch, Direction::Activation, stage.device());
  Pass& pass = prepared_pass(flight, stage, index, micro_batch);
  const auto& values = flight.cut.route_values[route];
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto slot = slot_of(stage.plan().inputs, values[i]);
    pass.inputs[slot] = std::move(message.values[i]);
    pass.input_requires_grad[slot] = message.requires_grad[i];
  }
}

void receive_gradient(Flight& flight, int route, int micro_batch, int index) {
  const Stage& stage = flight.stages[index];
  Message message = flight.board.receive(route, micro_batch, Direction::Gradient, stage.device());
  nn::Values& sums = flight.gradients[index][micro_batch];
  sums.resize(stage.plan().outputs.size());
  const auto& values = flight.cut.route_values[route];
  for (std::size_t i = 0; i < values.size(); ++i) {
    at::Tensor& sum = sums[slot_of(stage.plan().outputs, values[i])];
    if (!message.values[i].defined()) continue;
    sum = sum.defined() ? sum + message.values[i] : message.values[i];
  }
}

void send_gradient(Flight& flight, int route, int micro_batch, int index) {
  const Stage& stage = flight.stages[index];
  Outbox& outbox = flight.returned[index][micro_batch];
  Message message;
  for (const auto& value : flight.cut.route_values[route]) {
    message.values.push_back(outbox.values.at(slot_of(stage.plan().inputs, value)));
    message.requires_grad.push_back(false);
  }
  if (--outbox.sends_left == 0) outbox = Outbox();
  flight.board.send(route, micro_batch, Direction::Gradient, std::move(message), stage.device());
}

bool same_rank(const Flight& flight, const schedule::Route& route) {
  return flight.table.rank_of_stage[route.from_stage] == flight.table.rank_of_stage[route.to_stage];
}

// Calls `visit(route)` for the routes of a stage that stay inside its rank: no SEND or RECV moves
// those.
template <class Visit>
void for_routes_inside_rank(const Flight& flight, Visit visit) {
  for (std::size_t r = 0; r < flight.cut.routes.size(); ++r) {
    if (same_rank(flight, flight.cut.routes[r])) visit(static_cast<int>(r), flight.cut.routes[r]);
  }
}

int routes_from(const Flight& flight, int stage) {
  return static_cast<int>(
      std::count_if(flight.cut.routes.begin(), flight.cut.routes.end(),
                    [&](const auto& route) { return route.from_stage == stage; }));
}

int routes_to(const Flight& flight, int stage) {
  return static_cast<int>(
      std::count_if(flight.cut.routes.begin(), flight.cut.routes.end(),
                    [&](const auto& route) { return route.to_stage == stage; }));
}

void take_model_inputs(const Flight& flight, const Stage& stage, int micro_batch, Pass& pass) {
  for (std::size_t i = 0; i < stage.plan().inputs.size(); ++i) {
    const ValueId value = stage.plan().inputs[i];
    if (value.layer != nn::model_input) continue;
    const at::Tensor& given = flight.inputs[micro_batch].at(value.output);
    if (!given.defined()) continue;
    pass.inputs[i] = to_device(given, stage.device());
    pass.input_requires_grad[i] = flight.input_wants_gradient.at(value.output);
  }
}

void run_forward(Flight& flight, const Action& action) {
  const Stage& stage = flight.stages[action.stage];
  const int m = action.micro_batch;
  for_routes_inside_rank(flight, [&](int r, const auto& route) {
    if (route.to_stage == action.stage) receive_activation(flight, r, m, action.stage);
  });
  Pass& pass = prepared_pass(flight, stage, action.stage, m);
  take_model_inputs(flight, stage, m, pass);
  const bool graph = !flight.evaluating && !flight.recomputed[action.stage][m];
  Produced produced =
      stage.forward(pass, graph ? GraphMode::Keep : GraphMode::Discard, key_of(flight, m));
  if (flight.keep_outputs && stage.is_last()) {
    for (const auto& output : pass.model_outputs) {
      flight.outputs[m].push_back(output.defined() ? output.detach() : output);
    }
  }
  if (!graph) pass.model_outputs.clear();
  if (flight.evaluating) pass = Pass();
  if (const int sends = routes_from(flight, action.stage); sends > 0) {
    flight.activations[action.stage][m] = {std::move(produced.values),
                                           std::move(produced.requires_grad), sends};
  }
  for_routes_inside_rank(flight, [&](int r, const auto& route) {
    if (route.from_stage == action.stage) send_activation(flight, r, m, action.stage);
  });
}

// The loss of the whole mini-batch, once the last forward is there; its gradient is cut up for the
// micro-batches.
void take_whole_batch_loss(Flight& flight) {
  std::vector<at::Tensor> pieces;
  for (const auto& output : flight.outputs) {
    if (output.empty()) {
      throw UsageError(
          "loss '" + flight.loss->name +
              "' needs the outputs of the whole mini-batch, but the table starts a " +
              "backward before the last forward",
          {.hint = "Use schedule 'gpipe', or a loss that is defined for each micro-batch."});
    }
    pieces.push_back(output[0]);
  }
  const at::AutoGradMode grad(true);
  const at::Tensor whole = at::cat(pieces).detach().requires_grad_(true);
  const at::Tensor loss = flight.loss->value(whole, flight.whole_target);
  loss.backward();
  flight.losses[0] = loss.detach();
  flight.output_gradients.resize(flight.micro_batches());
  std::int64_t begin = 0;
  for (int m = 0; m < flight.micro_batches(); ++m) {
    flight.output_gradients[m] = {whole.grad().narrow(0, begin, pieces[m].size(0))};
    begin += pieces[m].size(0);
  }
}

nn::Values run_last_backward(Flight& flight, const Stage& stage, Pass& pass, int m,
                             const nn::Values& gradients) {
  if (flight.loss && flight.loss->kind == nn::Loss::Kind::Additive) {
    if (flight.shares[m] == 0) {  // nothing in it counts; its mean would be 0 / 0
      flight.losses[m] = at::zeros({});
      return stage.backward(pass, gradients, {});
    }
    at::Tensor loss;
    {
      const at::AutoGradMode grad(true);
      loss = flight.loss->value(pass.model_outputs.at(0), flight.targets[m]);
    }
    flight.losses[m] = loss.detach();
    return stage.backward_from_loss(pass, gradients, loss,
                                    at::full_like(flight.losses[m], flight.shares[m]));
  }
  if (flight.loss && flight.output_gradients.empty()) take_whole_batch_loss(flight);
  return stage.backward(pass, gradients, flight.output_gradients.at(m));
}

// Sets aside what belongs to the caller's own inputs.
void keep_input_gradients(Flight& flight, int index, int micro_batch, const nn::Values& gradients) {
  const auto& inputs = flight.stages[index].plan().inputs;
  nn::Values& kept = flight.input_gradients[index][micro_batch];
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].layer != nn::model_input || !gradients.at(i).defined()) continue;
    kept.resize(flight.inputs[micro_batch].size());
    kept[inputs[i].output] = gradients[i];
  }
}

void run_backward(Flight& flight, const Action& action) {
  const Stage& stage = flight.stages[action.stage];
  const int m = action.micro_batch;
  for_routes_inside_rank(flight, [&](int r, const auto& route) {
    if (route.from_stage == action.stage) receive_gradient(flight, r, m, action.stage);
  });
  Pass& pass = flight.passes[action.stage][m];
  const nn::Values gradients = std::exchange(flight.gradients[action.stage][m], {});
  nn::Values input_gradients = stage.is_last()
                                   ? run_last_backward(flight, stage, pass, m, gradients)
                                   : stage.backward(pass, gradients, {});
  keep_input_gradients(flight, action.stage, m, input_gradients);
  if (const int sends = routes_to(flight, action.stage); sends > 0) {
    flight.returned[action.stage][m] = {std::move(input_gradients), {}, sends};
  }
  for_routes_inside_rank(flight, [&](int r, const auto& route) {
    if (route.to_stage == action.stage) send_gradient(flight, r, m, action.stage);
  });
}

}  // namespace

int route_of(const Flight& flight, const Action& action) {
  switch (action.kind) {
    case Kind::SendActivation:
    case Kind::RecvGradient:
      return main_route(flight, action.stage);
    case Kind::RecvActivation:
    case Kind::SendGradient:
      return main_route(flight, action.stage - 1);
    default:
      return skip_route(flight, action);
  }
}

void execute(Flight& flight, const Action& action) {
  const int m = action.micro_batch;
  switch (action.kind) {
    case Kind::Forward:
      return run_forward(flight, action);
    case Kind::Recompute:
      return flight.stages[action.stage].recompute(flight.passes[action.stage][m],
                                                   key_of(flight, m));
    case Kind::Backward:
      return run_backward(flight, action);
    case Kind::SendActivation:
    case Kind::SendSkip:
      return send_activation(flight, route_of(flight, action), m, action.stage);
    case Kind::RecvActivation:
    case Kind::RecvSkip:
      return receive_activation(flight, route_of(flight, action), m, action.stage);
    case Kind::SendGradient:
    case Kind::SendSkipGradient:
      return send_gradient(flight, route_of(flight, action), m, action.stage);
    case Kind::RecvGradient:
    case Kind::RecvSkipGradient:
      return receive_gradient(flight, route_of(flight, action), m, action.stage);
    default:
      throw UsageError(
          "this pipeline cannot carry out " + schedule::to_string(action),
          {.hint =
               "It runs F, B, R and the sends and receives of activations, gradients and skips."});
  }
}

}  // namespace trestle::pipeline
