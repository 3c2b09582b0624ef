// Runs each kind of action of a schedule.
#include <ATen/Functions.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/pipeline/execute/executor.h"
#include "trestle/pipeline/execute/loss_step.h"
#include "trestle/pipeline/execute/micro_batch.h"
#include "trestle/pipeline/execute/tie_actions.h"

namespace trestle::pipeline {
namespace {

using schedule::Action;
using schedule::Kind;
using schedule::Transfer;
using Way = Transfer::Way;

// Sends the values of one route: outputs of F, or input gradients of B.
void send(MiniBatchState& state, const Transfer& transfer) {
  const bool forwards = transfer.way == Way::Activation;
  const auto& route = state.cut.routes[transfer.route];
  const int from = forwards ? route.from_stage : route.to_stage;
  MicroBatchState& own = state.at(from, transfer.micro_batch);
  PendingSends& pending = forwards ? own.activations : own.gradients;
  const auto& places =
      forwards ? state.cut.route_outputs[transfer.route] : state.cut.route_inputs[transfer.route];
  Message message;
  for (const int place : places) {
    StageValue& value = pending.values.at(place);
    message.push_back(--pending.routes.at(place) > 0 ? value : std::move(value));
  }
  state.transport->send(transfer, std::move(message), state.stages[from].device());
}

void receive(MiniBatchState& state, const Transfer& transfer) {
  const bool forwards = transfer.way == Way::Activation;
  const auto& route = state.cut.routes[transfer.route];
  const int to = forwards ? route.to_stage : route.from_stage;
  const Stage& stage = state.stages[to];
  Message message = state.transport->receive(transfer, stage.device());
  MicroBatchState& own = state.at(to, transfer.micro_batch);
  if (forwards) {
    own.pass.inputs.resize(stage.plan().inputs.size());
    const auto& places = state.cut.route_inputs[transfer.route];
    for (std::size_t i = 0; i < places.size(); ++i)
      own.pass.inputs[places[i]] = std::move(message[i]);
    return;
  }
  own.output_gradients.resize(stage.plan().outputs.size());
  const auto& places = state.cut.route_outputs[transfer.route];
  for (std::size_t i = 0; i < places.size(); ++i) {
    at::Tensor& sum = own.output_gradients[places[i]];
    const at::Tensor& gradient = message[i].value;
    if (gradient.defined()) sum = sum.defined() ? sum + gradient : gradient;
  }
}

// Calls `move` for those of a stage's routes that end on the same rank. The table has no SEND and
// RECV for them.
template <class Move>
void move_within_rank(MiniBatchState& state, const std::vector<int>& routes, int micro_batch,
                      Way way, Move move) {
  for (const int route : routes) {
    if (schedule::within_rank(state.table(), state.cut.routes[route]))
      move(state, {.route = route, .micro_batch = micro_batch, .way = way});
  }
}

void take_model_inputs(MiniBatchState& state, const Stage& stage, int micro_batch, Pass& pass) {
  pass.inputs.resize(stage.plan().inputs.size());
  for (std::size_t i = 0; i < stage.plan().inputs.size(); ++i) {
    const ValueId value = stage.plan().inputs[i];
    if (value.layer != nn::model_input) continue;
    const at::Tensor& given = state.inputs.batch[micro_batch].at(value.output);
    if (!given.defined()) continue;
    pass.inputs[i] = {.value = copy_beside(given, stage.device(), state.copies),
                      .wants_gradient = state.inputs.wants_gradient.at(value.output),
                      .shared = state.inputs.shared.at(value.output),
                      .owned = given.device() != stage.device()};
  }
}

// Whether a returned output must be a copy: the caller may write to it, while R starts from the
// inputs; and a view would keep its whole base.
bool must_copy(const Pass& pass, const at::Tensor& output) {
  if (nn::is_part_of_more(output)) return true;
  return std::any_of(pass.inputs.begin(), pass.inputs.end(), [&](const StageValue& input) {
    return nn::may_share_memory(input.value, output);
  });
}

void keep_model_outputs(MiniBatchState& state, const Pass& pass, int micro_batch) {
  StageState& last = state.last();
  const std::size_t first = pass.wants_gradient.size() - pass.model_outputs.size();
  last.outputs_want_gradient.resize(pass.model_outputs.size(), false);
  for (int i = 0; i < state.inputs.kept_outputs; ++i) {
    const at::Tensor& output = pass.model_outputs[i];
    if (pass.wants_gradient[first + i]) last.outputs_want_gradient[i] = true;
    last.outputs[micro_batch].push_back(!output.defined()         ? output
                                        : must_copy(pass, output) ? output.detach().clone()
                                                                  : output.detach());
  }
}

std::vector<StageValue> forward_counted(const MiniBatchState& state, const Stage& stage,
                                        StageState& own, Pass& pass, GraphMode mode,
                                        int micro_batch) {
  std::optional<nn::DeferredBatchNorm::Watch> watch;
  if (own.batch_norms) watch.emplace(*own.batch_norms);
  auto outputs = stage.forward(pass, mode, own.buffers, state.key(micro_batch));
  watch.reset();
  if (++own.forwards < state.micro_batches()) return outputs;
  if (own.batch_norms) own.batch_norms->commit();
  own.buffers = {};  // those that an R needs are in its snapshot
  return outputs;
}

void run_forward(MiniBatchState& state, const Action& action) {
  const Stage& stage = state.stages[action.stage];
  const int m = action.micro_batch;
  MicroBatchState& own = state.at(action.stage, m);
  move_within_rank(state, state.routes.into(action.stage), m, Way::Activation, receive);
  take_model_inputs(state, stage, m, own.pass);
  const GraphMode mode = state.inputs.evaluating ? GraphMode::None
                         : own.recomputed        ? GraphMode::Recompute
                                                 : GraphMode::Keep;
  auto outputs = forward_counted(state, stage, state.stage_states[action.stage], own.pass, mode, m);
  if (state.inputs.kept_outputs > 0 && stage.is_last()) keep_model_outputs(state, own.pass, m);
  if (mode == GraphMode::Recompute) own.pass.model_outputs.clear();
  if (mode == GraphMode::None) own.pass = Pass();
  own.activations = {std::move(outputs), stage.plan().output_routes};
  move_within_rank(state, state.routes.out_of(action.stage), m, Way::Activation, send);
}

nn::Values run_stage_backward(MiniBatchState& state, const Stage& stage, BackwardPart part,
                              MicroBatchState& own, int m) {
  const nn::Values gradients = std::exchange(own.output_gradients, {});
  if (!stage.is_last()) return stage.backward(own.pass, part, gradients, {});
  if (!state.inputs.loss || state.inputs.whole_batch_loss()) {
    if (state.last().loss_gradients.empty()) compute_whole_batch_loss(state);
    return stage.backward(own.pass, part, gradients, state.last().loss_gradients.at(m));
  }
  if (state.inputs.shares[m] == 0) {  // no sample counts; the mean would be 0 / 0
    state.last().losses[m] = at::zeros({});
    return stage.backward(own.pass, part, gradients, {});
  }
  const at::Tensor loss = micro_batch_loss(state, own.pass.model_outputs.at(0), m);
  return stage.backward_from_loss(
      own.pass, part, gradients, loss,
      at::full_like(loss.detach(), state.inputs.shares[m] * state.inputs.gradient_scale));
}

// Runs what accumulates into the parameters' gradients: B, or W.
template <class Accumulate>
void accumulate_gradients(MiniBatchState& state, int stage, const Accumulate& accumulate) {
  const bool is_last = ++state.stage_states[stage].accumulations == state.micro_batches();
  if (is_last && state.inputs.hooks) state.inputs.hooks->before_last_backward(stage);
  accumulate();
  if (state.inputs.hooks) state.inputs.hooks->after_backward(stage);
}

void run_weight_gradients(MiniBatchState& state, const Action& action) {
  if (state.whole_in_input_grad()) return;
  accumulate_gradients(state, action.stage, [&] {
    state.stages[action.stage].accumulate_weights(state.at(action.stage, action.micro_batch).pass);
  });
}

void note_whole_layers(MiniBatchState& state, int stage, const std::vector<std::string>& layers) {
  const auto rank = static_cast<std::size_t>(state.table().rank_of_stage[stage]);
  std::vector<std::string>& known = state.record.ranks[rank].whole_layers;
  for (const std::string& layer : layers)
    if (!layer.empty() && std::find(known.begin(), known.end(), layer) == known.end())
      known.push_back(layer);
}

// B, or I.
void run_backward(MiniBatchState& state, const Action& action) {
  const Stage& stage = state.stages[action.stage];
  const int m = action.micro_batch;
  MicroBatchState& own = state.at(action.stage, m);
  move_within_rank(state, state.routes.out_of(action.stage), m, Way::Gradient, receive);
  nn::Values gradients;
  if (action.kind == Kind::InputGrad && !state.whole_in_input_grad()) {
    gradients = run_stage_backward(state, stage, BackwardPart::Inputs, own, m);
    note_whole_layers(state, action.stage, own.pass.whole_layers);
  } else {
    accumulate_gradients(state, action.stage, [&] {
      gradients = run_stage_backward(state, stage, BackwardPart::Whole, own, m);
    });
  }
  // The gradients of the model's inputs stay here.
  std::vector<StageValue> sent;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const ValueId value = stage.plan().inputs[i];
    sent.emplace_back();
    if (value.layer != nn::model_input) {
      sent.back().value = gradients[i];
    } else if (gradients[i].defined()) {
      own.model_input_gradients.resize(state.inputs.batch[m].size());
      own.model_input_gradients[value.output] = gradients[i];
    }
  }
  own.gradients = {std::move(sent), stage.plan().input_routes};
  move_within_rank(state, state.routes.into(action.stage), m, Way::Gradient, send);
}

void run_norm(MiniBatchState& state, int rank) {
  std::vector<int> stages;
  for (const Stage& stage : state.stages)
    if (state.table().rank_of_stage[stage.index()] == rank) stages.push_back(stage.index());
  state.transport->give_norms(rank, state.inputs.optimizers->norms(stages, state.inputs.end));
}

void run_step(MiniBatchState& state, int stage) {
  state.inputs.optimizers->step(stage, state.transport->norms(), state.inputs.end);
}

}  // namespace

Transfer transfer_of(const MiniBatchState& state, const Action& action) {
  if (is_tie(state.cut, action)) return tie_transfer(action);
  const auto transfer = state.routes.of(action);
  if (transfer) return *transfer;
  throw StateError("internal: no route for " + schedule::to_string(action));
}

void execute(MiniBatchState& state, const Action& action) {
  if (is_tie(state.cut, action)) return run_tie(state, action);
  switch (action.kind) {
    case Kind::Forward:
      run_forward(state, action);
      if (state.inputs.evaluating && state.inputs.hooks &&
          action.micro_batch + 1 == state.micro_batches())
        state.inputs.hooks->end_forwards(action.stage);
      return;
    case Kind::Recompute:
      return state.stages[action.stage].recompute(
          state.at(action.stage, action.micro_batch).pass,
          state.inputs.batch_norm == nn::BatchNormStatistics::EachRun ? Stage::Buffers::Change
                                                                      : Stage::Buffers::Restore);
    case Kind::Backward:
    case Kind::InputGrad:
      return run_backward(state, action);
    case Kind::WeightGrad:
      return run_weight_gradients(state, action);
    case Kind::Unshard:
      return state.inputs.hooks->unshard(
          action.stage,
          {.kind = state.inputs.evaluating ? StageUse::Kind::Evaluation : StageUse::Kind::Step,
           .micro_batches = state.micro_batches()});
    case Kind::Reshard:
      return state.inputs.hooks->reshard(action.stage);
    case Kind::ReduceGrad:
      return state.inputs.hooks->reduce_gradients(action.stage);
    case Kind::Norm:
      return run_norm(state, state.table().rank_of_stage[action.stage]);
    case Kind::Step:
      return run_step(state, action.stage);
    default:
      break;
  }
  if (schedule::is_send(action.kind)) return send(state, transfer_of(state, action));
  if (schedule::is_receive(action.kind)) return receive(state, transfer_of(state, action));
  throw UsageError("a pipeline cannot run " + schedule::to_string(action));
}

}  // namespace trestle::pipeline
