#include "trestle/pipeline/execute/failure.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/device/device.h"
#include "trestle/device/error_context.h"
#include "trestle/device/virtual_device.h"

namespace trestle::pipeline {
namespace {

// The layer that was running. A forward reports its layer; in a backward the number of the autograd
// node identifies it.
std::string layer_of(const Stage& stage, const Pass& pass, const OutOfMemoryReport& report) {
  if (!report.layer.empty()) return text(", layer '", report.layer, "'");
  const std::string layer = stage.layer_of_node(pass, report.node_sequence);
  if (!layer.empty()) return text(", backward of layer '", layer, "'");
  return report.node.empty() ? "" : text(", ", report.node);
}

// The reduction of gradients and an optimizer's step have no micro-batch.
std::string micro_batch_of(const schedule::Action& action) {
  return action.micro_batch < 0 ? "" : text(", micro-batch ", action.micro_batch);
}

[[noreturn]] void throw_out_of_memory(const MiniBatchState& state, const schedule::Action& action) {
  const Stage& stage = state.stages[action.stage];
  const Pass& pass = state.at(action.stage, std::max(0, action.micro_batch)).pass;
  std::optional<OutOfMemoryReport> report;
  if (stage.device().is_privateuseone()) report = last_out_of_memory(stage.device());
  const std::string place = text("stage ", action.stage, micro_batch_of(action));
  if (!report) rethrow_with_context(text("in ", place));
  std::string message =
      text(device_name(report->device), " is out of memory in ", place,
           layer_of(stage, pass, *report), ": asked ", format_bytes(report->requested), ", ",
           format_bytes(report->in_use), " of ", format_bytes(report->budget), " in use.");
  const std::string advice = state.inputs.suggest ? state.inputs.suggest(action.stage) : "";
  if (!advice.empty()) message += "\n         " + advice;
  throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, message);
}

}  // namespace

void rethrow_from(const MiniBatchState& state, int rank, const schedule::Action& action) {
  try {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw_out_of_memory(state, action);
  } catch (...) {
    const Pass& pass = state.at(action.stage, std::max(0, action.micro_batch)).pass;
    // The ranks of a replica's table are not those of the world.
    const std::string table_rank = state.inputs.replicas.valid() ? "" : text(" on rank ", rank);
    rethrow_with_context(
        text("in stage ", action.stage, micro_batch_of(action), " (", schedule::to_string(action),
             table_rank, ", ", device_name(state.stages[action.stage].device()),
             pass.input_shapes.empty() ? "" : "; stage input " + pass.input_shapes, ")"));
  }
}

}  // namespace trestle::pipeline
