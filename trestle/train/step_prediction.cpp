#include "trestle/train/step_prediction.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "trestle/train/setup.h"
#include "trestle/train/sharded_state_size.h"

namespace trestle::train {

namespace {

// Facts that only the rank of a stage has.
struct StageFacts {
  Bytes trained = 0;  // of its parameters
  Bytes largest = 0;  // of one of its parameters
  bool on_cpu = false;
};

std::vector<StageFacts> facts_of_stages(const Pipeline& pipeline, const RunRanks& ranks) {
  std::vector<std::pair<int, StageFacts>> rows;
  for (int stage = 0; stage < pipeline.stage_count(); ++stage) {
    if (!pipeline.has_stage(stage)) continue;
    StageFacts facts{.on_cpu = pipeline.device(stage).torch.is_cpu()};
    for (const at::Tensor& parameter : pipeline.stage_parameters(stage)) {
      const auto bytes = static_cast<Bytes>(parameter.nbytes());
      if (parameter.requires_grad()) facts.trained += bytes;
      facts.largest = std::max(facts.largest, bytes);
    }
    rows.emplace_back(stage, facts);
  }
  std::vector<StageFacts> all(static_cast<std::size_t>(pipeline.stage_count()));
  for (const auto& of_rank : ranks.gather(rows))
    for (const auto& [stage, facts] : of_rank) all.at(static_cast<std::size_t>(stage)) = facts;
  return all;
}

// The optimizer steps after all activations are freed. It updates one parameter at a time with up
// to three temporary tensors of its size (Adam with weight decay).
void add_optimizer_peaks(const recipe::Recipe& recipe, const std::vector<StageFacts>& stages,
                         const simulate::Costs& costs, schedule::Timeline* timeline) {
  std::vector<Bytes> held(timeline->device_peak_bytes.size(), 0);
  std::vector<Bytes> largest(held.size(), 0);
  for (std::size_t stage = 0; stage < costs.stages.size(); ++stage) {
    const auto device = static_cast<std::size_t>(timeline->device_of_stage.at(stage));
    const auto& cost = costs.stages[stage];
    const OptimizerStepBytes step =
        bytes_during_optimizer_step(recipe, stages[stage].trained, stages[stage].largest);
    held[device] += cost.persistent + std::min(cost.gradients, step.gradients);
    // Stages of one device step at the same time where each has a thread.
    largest[device] = costs.concurrency == simulate::Concurrency::OneThread
                          ? std::max(largest[device], step.largest)
                          : largest[device] + step.largest;
  }
  for (std::size_t device = 0; device < held.size(); ++device) {
    Bytes& peak = timeline->device_peak_bytes[device];
    peak = std::max(peak, held[device] + 3 * largest[device]);
  }
}

// A plain CPU has no memory meter. Its predicted bytes would be those of the weights alone, drawn
// as if they were all.
void forget_bytes_of_cpu(const std::vector<StageFacts>& stages, schedule::Timeline* timeline) {
  std::vector<bool> counted(static_cast<std::size_t>(timeline->rank_count), true);
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    if (stages[stage].on_cpu)
      counted[static_cast<std::size_t>(timeline->rank_of_stage.at(stage))] = false;
  std::erase_if(timeline->memory, [&](const schedule::MemorySample& sample) {
    return !counted.at(static_cast<std::size_t>(sample.rank));
  });
  for (std::size_t rank = 0; rank < timeline->peak_bytes.size(); ++rank)
    if (!counted.at(rank)) timeline->peak_bytes[rank] = 0;
}

// The duration without the optimizer, and what the optimizer adds to it.
void predict_times(const Pipeline& pipeline, Prediction* prediction) {
  simulate::Costs without = prediction->costs;
  for (simulate::StageCost& cost : without.stages) cost.norm = cost.step = 0;
  const schedule::Timeline step = pipeline.predict(without);
  prediction->seconds = schedule::makespan(step);
  prediction->idle = schedule::idle_share_of_makespan(step);
  prediction->optimizer_seconds =
      std::max(0.0, schedule::makespan(prediction->timeline) - prediction->seconds);
}

std::vector<Bytes> peaks_of_stages(const std::vector<StageFacts>& stages,
                                   const schedule::Timeline& timeline) {
  std::vector<Bytes> peaks;
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    peaks.push_back(stages[stage].on_cpu ? 0
                                         : timeline.device_peak_bytes.at(static_cast<std::size_t>(
                                               timeline.device_of_stage.at(stage))));
  return peaks;
}

}  // namespace

std::optional<Prediction> predict_step(const recipe::Recipe& recipe, Pipeline& pipeline,
                                       const Task& task, const data::Batch& batch,
                                       const RunRanks& ranks) {
  try {
    Prediction prediction;
    prediction.costs = pipeline.profile({batch.inputs}, batch.targets, task.loss);
    const std::vector<StageFacts> stages = facts_of_stages(pipeline, ranks);
    const int states = optimizer_state_factor(recipe.optimizer);
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      auto& cost = prediction.costs.stages[stage];
      cost.persistent += stages[stage].trained * states;
      size_sharded_state(recipe, stages[stage].trained, states, &cost);
    }
    // Batches after the first one of a step add to existing gradients, and the buffers of
    // reductions stay allocated.
    prediction.costs.gradients_at_start |= recipe.train.accumulate > 1 || recipe.mesh.parts() > 1;
    pipeline.remember_costs(prediction.costs);
    prediction.timeline = pipeline.predict(prediction.costs);
    predict_times(pipeline, &prediction);
    add_optimizer_peaks(recipe, stages, prediction.costs, &prediction.timeline);
    forget_bytes_of_cpu(stages, &prediction.timeline);
    prediction.stage_peaks = peaks_of_stages(stages, prediction.timeline);
    return prediction;
  } catch (const c10::OutOfMemoryError&) {
    if (!ranks.alone()) throw;
    return std::nullopt;  // with recomputation the run itself may still fit
  }
}

}  // namespace trestle::train
