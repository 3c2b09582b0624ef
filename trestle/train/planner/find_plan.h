#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/mesh/layout/mesh_layout.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/loss.h"
#include "trestle/optim/options/optimizer_options.h"
#include "trestle/parallel/parallelize.h"
#include "trestle/plan/search/search.h"

// The best way to train a net on several devices: the planner of `trestle plan` for a program's own
// net.
namespace trestle {

struct FindPlanOptions {
  int devices = 1;         // the ranks of the plan: it uses all of them
  std::int64_t batch = 1;  // examples of a step, of all ranks together
  plan::Goal goal = plan::Goal::Time;
  Bytes memory = 0;      // what a device may use; 0 = no limit
  plan::Kept keep = {};  // degrees that the plan must have; its tensor is 1
  optim::OptimizerOptions optimizer = {.name = "adamw"};  // whose state counts
};

struct FoundPlan {
  plan::Strategy strategy = {};
  // For a DeviceMesh of strategy.devices() ranks: "pipeline", and those of "replicate" and "shard"
  // that are above 1.
  std::vector<mesh::Dimension> mesh = {};
  // For parallelize(): the level, and in options.options balance, micro-batches, schedule,
  // recomputation and precision. Each rank adds its device. Without data ranks options.options are
  // also those of a Pipeline of one process.
  ParallelOptions options = {};
  double seconds = 0;       // of a step, simulated
  Bytes peak = 0;           // of the fullest device, predicted
  std::string report = {};  // the plan and why it was chosen, in lines
};

// Measures the layers of `net` on this machine, on one example, simulates every plan over data
// ranks (replicated or at a level of ZeRO), stages, micro-batches, schedules and recomputation, and
// returns the best. The plan trains the same model: loss and gradients are those of the plain net,
// but batch norms take their statistics from each micro-batch of a replica, as in any pipeline;
// .keep = {.data = 1, .micro_batch = batch} keeps those of the plain net.
// Peaks are those of ranks that step with the optimizer of optim::make_optimizer(); torch's own has
// temporary tensors of its own.
//
// `sample`: one or more examples, [n, ...], of which the first is measured; `target` has its target
// first. Times are those of devices that each compute as fast as a core of this machine; with a
// CUDA device they are those of the first GPU. Without CUDA it installs virtual devices, for which
// it must be called before the first backward(). The net is on the CPU afterwards; its values,
// gradients and modes, the data, the default generator, the threads of an operator and the devices'
// budgets are unchanged. Parameters that were views of one tensor have memory of their own. It
// measures on the last virtual device: what other threads do there meanwhile would count. Calls
// from several threads run one after the other. Call it on one rank, and
// give all ranks its result: measured times differ from call to call.
//
//   const trestle::FoundPlan plan = trestle::find_plan(
//       net, image, mask, trestle::nn::cross_entropy(), {.devices = 4, .batch = 32});
//   std::cout << plan.report;
//   const trestle::DeviceMesh mesh(world, plan.mesh);
//   auto parallel = trestle::parallelize(net, mesh, plan.options);
//
// Throws UsageError for a number below 1, for a batch that nothing divides, for a net that does not
// take the sample, for Goal::Money, because these devices have no price, and with the bytes of the
// smallest plan if nothing fits. Throws StateError if virtual devices cannot be installed any more.
FoundPlan find_plan(const nn::Layers& net, const at::Tensor& sample, const at::Tensor& target,
                    const nn::Loss& loss, const FindPlanOptions& options);

}  // namespace trestle
