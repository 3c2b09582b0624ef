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

nn::RunKey key_of(const StepState& state, int micro_batch) {
  return {.seed = state.seed, .step = state.step, .micro_batch = micro_batch};
}

std::size_t slot_of(const std::vector<ValueId>& values, ValueId value) {
  const auto found = std::find(values.begin(), values.end(), value);
  if (found == values.end())
    throw StateError("internal: a value travels to a stage that does not know it");
  return found - values.begin();
}

int main_route(const StepState& state, int from_stage) {
  const auto& routes = state.cut.routes;
  for (std::size_t r = 0; r < routes.size(); ++r) {
    if (!routes[r].skip && routes[r].from_stage == from_stage) return static_cast<int>(r);
  }
  throw UsageError(text("the table moves something from stage ", from_stage, " to ", from_stage + 1,
                        " on the main lane, but the model has nothing to move there"));
}

// The table and the cut list the same routes, but a table of the user's may list them in another
// order.
int skip_route(const StepState& state, const Action& action) {
  const auto& wanted = state.table.routes.at(action.route);
  const auto& routes = state.cut.routes;
  const auto found = std::find(routes.begin(), routes.end(), wanted);
  if (found == routes.end()) {
    throw UsageError(text("the table has a skip route '", wanted.name, "' from stage ",
                          wanted.from_stage, " to ", wanted.to_stage, " that the model has not"));
  }
  return static_cast<int>(found - routes.begin());
}

// Hands the values of one route to the channels, from what F made.
void send_activation(StepState& state, int route, int micro_batch, int index) {
  const Stage& stage = state.stages[index];
  PendingSends& pending = state.activations[index][micro_batch];
  Message message;
  for (const auto& value : state.cut.route_values[route]) {
    const auto slot = slot_of(stage.plan().outputs, value);
    message.values.push_back(pending.values.at(slot));
    message.requires_grad.push_back(pending.requires_grad.at(slot));
  }
  if (--pending.sends_left == 0) pending = PendingSends();
  state.channels.send(route, micro_batch, Direction::Activation, std::move(message),
                      stage.device());
}

Pass& prepared_pass(StepState& state, const Stage& stage, int index, int micro_batch) {
  Pass& pass = state.passes[index][micro_batch];
  if (pass.inputs.empty()) {
    pass.inputs.resize(stage.plan().inputs.size());
    pass.input_requires_grad.resize(stage.plan().inputs.size(), false);
  }
  return pass;
}

void receive_activation(StepState& state, int route, int micro_batch, int index) {
  const Stage& stage = state.stages[index];
  Message message =
      state.channels.receive(route, micro_batch, Direction::Activation, stage.device());
  Pass& pass = prepared_pass(state, stage, index, micro_batch);
  const auto& values = state.cut.route_values[route];
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto slot = slot_of(stage.plan().inputs, values[i]);
    pass.inputs[slot] = std::move(message.values[i]);
    pass.input_requires_grad[slot] = message.requires_grad[i];
  }
}

void receive_gradient(StepState& state, int route, int micro_batch, int index) {
  const Stage& stage = state.stages[index];
  Message message = state.channels.receive(route, micro_batch, Direction::Gradient, stage.device());
  nn::Values& sums = state.gradients[index][micro_batch];
  sums.resize(stage.plan().outputs.size());
  const auto& values = state.cut.route_values[route];
  for (std::size_t i = 0; i < values.size(); ++i) {
    at::Tensor& sum = sums[slot_of(stage.plan().outputs, values[i])];
    if (!message.values[i].defined()) continue;
    sum = sum.defined() ? sum + message.values[i] : message.values[i];
  }
}

void send_gradient(StepState& state, int route, int micro_batch, int index) {
  const Stage& stage = state.stages[index];
  PendingSends& pending = state.returned[index][micro_batch];
  Message message;
  for (const auto& value : state.cut.route_values[route]) {
    message.values.push_back(pending.values.at(slot_of(stage.plan().inputs, value)));
    message.requires_grad.push_back(false);
  }
  if (--pending.sends_left == 0) pending = PendingSends();
  state.channels.send(route, micro_batch, Direction::Gradient, std::move(message), stage.device());
}

bool same_rank(const StepState& state, const schedule::Route& route) {
  return state.table.rank_of_stage[route.from_stage] == state.table.rank_of_stage[route.to_stage];
}

// Calls `visit(route)` for the routes of a stage that stay inside its rank: no SEND or RECV moves
// those.
template <class Visit>
void for_routes_inside_rank(const StepState& state, Visit visit) {
  for (std::size_t r = 0; r < state.cut.routes.size(); ++r) {
    if (same_rank(state, state.cut.routes[r])) visit(static_cast<int>(r), state.cut.routes[r]);
  }
}

int routes_from(const StepState& state, int stage) {
  return static_cast<int>(
      std::count_if(state.cut.routes.begin(), state.cut.routes.end(),
                    [&](const auto& route) { return route.from_stage == stage; }));
}

int routes_to(const StepState& state, int stage) {
  return static_cast<int>(
      std::count_if(state.cut.routes.begin(), state.cut.routes.end(),
                    [&](const auto& route) { return route.to_stage == stage; }));
}

void take_model_inputs(const StepState& state, const Stage& stage, int micro_batch, Pass& pass) {
  for (std::size_t i = 0; i < stage.plan().inputs.size(); ++i) {
    const ValueId value = stage.plan().inputs[i];
    if (value.layer != nn::model_input) continue;
    const at::Tensor& given = state.inputs[micro_batch].at(value.output);
    if (!given.defined()) continue;
    pass.inputs[i] = to_device(given, stage.device());
    pass.input_requires_grad[i] = state.input_wants_gradient.at(value.output);
  }
}

void run_forward(StepState& state, const Action& action) {
  const Stage& stage = state.stages[action.stage];
  const int m = action.micro_batch;
  for_routes_inside_rank(state, [&](int r, const auto& route) {
    if (route.to_stage == action.stage) receive_activation(state, r, m, action.stage);
  });
  Pass& pass = prepared_pass(state, stage, action.stage, m);
  take_model_inputs(state, stage, m, pass);
  const bool graph = !state.evaluating && !state.recomputed[action.stage][m];
  Produced produced =
      stage.forward(pass, graph ? GraphMode::Keep : GraphMode::Discard, key_of(state, m));
  if (state.keep_outputs && stage.is_last()) {
    for (const auto& output : pass.model_outputs) {
      state.outputs[m].push_back(output.defined() ? output.detach() : output);
    }
  }
  if (!graph) pass.model_outputs.clear();
  if (state.evaluating) pass = Pass();
  if (const int sends = routes_from(state, action.stage); sends > 0) {
    state.activations[action.stage][m] = {std::move(produced.values),
                                          std::move(produced.requires_grad), sends};
  }
  for_routes_inside_rank(state, [&](int r, const auto& route) {
    if (route.from_stage == action.stage) send_activation(state, r, m, action.stage);
  });
}

// The loss of the whole mini-batch, once the last forward is there; its gradient is cut up for the
// micro-batches.
void take_whole_batch_loss(StepState& state) {
  std::vector<at::Tensor> pieces;
  for (const auto& output : state.outputs) {
    if (output.empty()) {
      throw UsageError(
          "loss '" + state.loss->name +
              "' needs the outputs of the whole mini-batch, but the table starts a " +
              "backward before the last forward",
          {.hint = "Use schedule 'gpipe', or a loss that is defined for each micro-batch."});
    }
    pieces.push_back(output[0]);
  }
  const at::AutoGradMode grad(true);
  const at::Tensor whole = at::cat(pieces).detach().requires_grad_(true);
  const at::Tensor loss = state.loss->value(whole, state.whole_target);
  loss.backward();
  state.losses[0] = loss.detach();
  state.output_gradients.resize(state.micro_batches());
  std::int64_t begin = 0;
  for (int m = 0; m < state.micro_batches(); ++m) {
    state.output_gradients[m] = {whole.grad().narrow(0, begin, pieces[m].size(0))};
    begin += pieces[m].size(0);
  }
}

nn::Values run_last_backward(StepState& state, const Stage& stage, Pass& pass, int m,
                             const nn::Values& gradients) {
  if (state.loss && state.loss->kind == nn::Loss::Kind::Additive) {
    if (state.shares[m] == 0) {  // nothing in it counts; its mean would be 0 / 0
      state.losses[m] = at::zeros({});
      return stage.backward(pass, gradients, {});
    }
    at::Tensor loss;
    {
      const at::AutoGradMode grad(true);
      loss = state.loss->value(pass.model_outputs.at(0), state.targets[m]);
    }
    state.losses[m] = loss.detach();
    return stage.backward_from_loss(pass, gradients, loss,
                                    at::full_like(state.losses[m], state.shares[m]));
  }
  if (state.loss && state.output_gradients.empty()) take_whole_batch_loss(state);
  return stage.backward(pass, gradients, state.output_gradients.at(m));
}

// Sets aside what belongs to the caller's own inputs.
void keep_input_gradients(StepState& state, int index, int micro_batch,
                          const nn::Values& gradients) {
  const auto& inputs = state.stages[index].plan().inputs;
  nn::Values& kept = state.input_gradients[index][micro_batch];
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].layer != nn::model_input || !gradients.at(i).defined()) continue;
    kept.resize(state.inputs[micro_batch].size());
    kept[inputs[i].output] = gradients[i];
  }
}

void run_backward(StepState& state, const Action& action) {
  const Stage& stage = state.stages[action.stage];
  const int m = action.micro_batch;
  for_routes_inside_rank(state, [&](int r, const auto& route) {
    if (route.from_stage == action.stage) receive_gradient(state, r, m, action.stage);
  });
  Pass& pass = state.passes[action.stage][m];
  const nn::Values gradients = std::exchange(state.gradients[action.stage][m], {});
  nn::Values input_gradients = stage.is_last() ? run_last_backward(state, stage, pass, m, gradients)
                                               : stage.backward(pass, gradients, {});
  keep_input_gradients(state, action.stage, m, input_gradients);
  if (const int sends = routes_to(state, action.stage); sends > 0) {
    state.returned[action.stage][m] = {std::move(input_gradients), {}, sends};
  }
  for_routes_inside_rank(state, [&](int r, const auto& route) {
    if (route.to_stage == action.stage) send_gradient(state, r, m, action.stage);
  });
}

}  // namespace

int route_of(const StepState& state, const Action& action) {
  switch (action.kind) {
    case Kind::SendActivation:
    case Kind::RecvGradient:
      return main_route(state, action.stage);
    case Kind::RecvActivation:
    case Kind::SendGradient:
      return main_route(state, action.stage - 1);
    default:
      return skip_route(state, action);
  }
}

void execute(StepState& state, const Action& action) {
  const int m = action.micro_batch;
  switch (action.kind) {
    case Kind::Forward:
      return run_forward(state, action);
    case Kind::Recompute:
      return state.stages[action.stage].recompute(state.passes[action.stage][m], key_of(state, m));
    case Kind::Backward:
      return run_backward(state, action);
    case Kind::SendActivation:
    case Kind::SendSkip:
      return send_activation(state, route_of(state, action), m, action.stage);
    case Kind::RecvActivation:
    case Kind::RecvSkip:
      return receive_activation(state, route_of(state, action), m, action.stage);
    case Kind::SendGradient:
    case Kind::SendSkipGradient:
      return send_gradient(state, route_of(state, action), m, action.stage);
    case Kind::RecvGradient:
    case Kind::RecvSkipGradient:
      return receive_gradient(state, route_of(state, action), m, action.stage);
    default:
      throw UsageError(
          "this pipeline cannot carry out " + schedule::to_string(action),
          {.hint =
               "It runs F, B, R and the sends and receives of activations, gradients and skips."});
  }
}

}  // namespace trestle::pipeline
