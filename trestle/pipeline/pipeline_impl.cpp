#include "trestle/pipeline/pipeline_impl.h"

#include <ATen/Functions.h>

#include <limits>
#include <numeric>
#include <optional>
#include <sstream>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"
#include "trestle/device/threads.h"
#include "trestle/device/transfer.h"
#include "trestle/device/virtual_device.h"
#include "trestle/nn/training_mode_scope.h"
#include "trestle/pipeline/autograd_bridge.h"
#include "trestle/pipeline/micro_batch.h"
#include "trestle/pipeline/options.h"
#include "trestle/pipeline/outside_inference_mode.h"
#include "trestle/pipeline/profile.h"
#include "trestle/pipeline/profile_layers.h"
#include "trestle/pipeline/step_checks.h"
#include "trestle/plan/balance.h"
#include "trestle/plan/fit.h"
#include "trestle/schedule/data_parallel.h"
#include "trestle/schedule/lend_cores.h"
#include "trestle/schedule/optimizer_steps.h"
#include "trestle/schedule/placement.h"
#include "trestle/schedule/validate.h"

namespace trestle {

using pipeline::PartitionedModel;

namespace {

std::vector<int> one_rank_each(int stages) {
  std::vector<int> ranks(stages);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// What the rank `from` found, on all.
std::vector<int> share_balance(std::vector<int> balance, const comm::Group& group, int from) {
  std::istringstream numbers(group.broadcast_bytes(join(balance, " "), from));
  balance.clear();
  for (int count = 0; numbers >> count;) balance.push_back(count);
  return balance;
}

}  // namespace

Pipeline::Impl::Impl(const nn::Layers& layers, PipelineOptions given)
    : model(layers), options(std::move(given)) {
  if (options.devices.empty()) options.devices.assign(1, cpu_device());
  int count = 0;
  each_checks([&] {
    if (over_ranks()) check_ranks();
    count = static_cast<int>(model.graph().layers.size());
    pipeline::check_options(options, count);
    for (const auto& device : options.devices) {
      if (device.torch.is_privateuseone() && device.budget > 0)
        set_budget(device.torch, device.budget);
    }
  });
  if (!options.balance.empty()) {
    cut(options.balance);
  } else if (options.devices.size() == 1 && !over_ranks()) {
    cut({count});
  } else if (!options.sample.empty() || over_ranks()) {
    const precision::Autocast autocast(options.precision);
    measure_balance(prepared(options.sample));
  }
}

std::vector<nn::Values> Pipeline::Impl::split(const nn::Values& batch) const {
  return pipeline::split(batch, options.micro_batches, options.split_size);
}

PartitionedModel& Pipeline::Impl::cut_for(const nn::Values& inputs) {
  const std::lock_guard lock(mutex_);
  if (!parts_) measure_balance(inputs);
  const auto cut = std::accumulate(options.balance.begin(), options.balance.end(), std::size_t{0});
  if (cut != model.size())
    throw StateError(
        text("the pipeline was cut when its model had ", cut, " layers; now it has ", model.size()),
        {.hint = "Add all layers first, then make the pipeline."});
  for (const auto& stage : parts_->stages) stage.check_devices();
  return *parts_;
}

PartitionedModel& Pipeline::Impl::parts() const {
  if (!parts_) {
    throw StateError(
        "the pipeline has not been cut yet: no balance was given and no mini-batch has been seen "
        "to measure one",
        {.hint = "Give 'balance' or 'sample', or call step() or forward() first."});
  }
  return *parts_;
}

void Pipeline::Impl::cut(const std::vector<int>& balance) {
  options.balance = balance;
  const int stages = static_cast<int>(balance.size());
  const auto ranks = options.table ? options.table->rank_of_stage : one_rank_each(stages);
  together([&] {  // a rank makes its own layers, and what goes wrong in them nobody else sees
    parts_ = std::make_shared<PartitionedModel>(
        model.graph(), balance, options.devices, ranks, options.threads, options.memory_format,
        over_ranks() ? std::optional(options.group.rank()) : std::nullopt);
  });
  // Finds what is wrong with a table before the first step.
  each_checks([&] {
    tables_[{options.micro_batches, options.schedule, true, false}] =
        lower(options.micro_batches, options.schedule, recompute_modes());
  });
  if (over_ranks()) join_ranks();
}

// Over ranks the first one measures, and the others take what it found.
void Pipeline::Impl::measure_balance(const nn::Values& batch) {
  std::vector<int> balance;
  each_checks([&] {
    if (over_ranks() && options.group.rank() != first_rank()) return;
    const nn::Values piece = split(batch)[0];
    const at::Device device = options.devices[0].torch;
    const plan::LayerProfile profile = over_ranks()
                                           ? profile_layers_one_by_one(model.graph(), piece, device)
                                           : profile_layers(model.graph(), piece, device);
    balance = plan::balance_by_time(profile, pipeline::stage_count(options));
  });
  if (over_ranks()) balance = share_balance(std::move(balance), options.group, first_rank());
  // Each replica has measured times of its own, and all need one cut.
  if (options.replicas.valid()) balance = share_balance(std::move(balance), options.replicas, 0);
  cut(balance);
}

std::vector<Recompute> Pipeline::Impl::recompute_modes() const {
  if (!options.recompute_per_stage.empty()) return options.recompute_per_stage;
  return std::vector<Recompute>(options.balance.size(), options.recompute);
}

const schedule::Schedule& Pipeline::Impl::lowered(int micro_batches, const std::string& name,
                                                  bool recompute, bool updates) {
  const std::lock_guard lock(mutex_);
  auto& table = tables_[{micro_batches, name, recompute, updates}];
  if (table.stages > 0) return table;
  table = lower(micro_batches, name, recompute ? recompute_modes() : std::vector<Recompute>());
  if (updates) table = schedule::add_optimizer_steps(std::move(table));
  return table;
}

const std::shared_ptr<pipeline::StageOptimizers>& Pipeline::Impl::optimizers() {
  const std::lock_guard lock(mutex_);
  if (!options.optimizer)
    throw StateError(
        "this pipeline has no optimizers: PipelineOptions::optimizer was not given",
        {.hint = "Give it, or make an optimizer of parameters() and step it yourself."});
  if (!optimizers_)
    optimizers_ = std::make_shared<pipeline::StageOptimizers>(
        parts().stages, parts().named_parameters(), options.optimizer, options.hooks);
  return optimizers_;
}

schedule::Schedule Pipeline::Impl::lower(int micro_batches, const std::string& name,
                                         const std::vector<Recompute>& recompute) const {
  const int stages = static_cast<int>(options.balance.size());
  const bool given =
      options.table && options.table->micro_batches == micro_batches && name == options.schedule;
  schedule::Schedule table = given ? *options.table
                                   : schedule::generate(options.table ? "gpipe" : name,
                                                        {.stages = stages,
                                                         .micro_batches = micro_batches,
                                                         .backward_order = options.backward_order});
  if (options.table && !given) table = schedule::place(table, *options.table);
  table = schedule::lower(table, {.routes = parts_->cut.routes, .recompute = recompute});
  if (lends_cores())
    table =
        schedule::lend_cores(table, {.all = core_count(), .each_rank = parts_->executor.threads()});
  return options.hooks ? schedule::add_reductions(std::move(table)) : table;
}

bool Pipeline::Impl::lends_cores() const {
  return options.core_lending == CoreLending::On && parts().can_lend_cores;
}

int Pipeline::Impl::planned_micro_batches() const {
  const std::lock_guard lock(mutex_);
  if (options.split_size > 0) return pipeline::piece_count_by_size(samples_, options.split_size);
  return samples_ > 0 ? std::min(options.micro_batches, samples_) : options.micro_batches;
}

// A table of the user's own covers one number of micro-batches; with others something else would
// run, so none are suggested.
std::string Pipeline::Impl::suggest() const {
  plan::FitQuestion question{
      .lower = [this](int count,
                      const auto& modes) { return lower(count, options.schedule, modes); },
      .micro_batches = std::max(planned_micro_batches(), 1),
      .split_size = options.split_size,
      .recompute = recompute_modes()};
  const std::lock_guard lock(mutex_);
  question.samples = std::max(samples_, question.micro_batches);
  for (const int times : {2, 4, 8}) {
    const int size = options.split_size / times;
    const int count =
        size > 0 ? pipeline::piece_count_by_size(samples_, size) : question.micro_batches * times;
    if (!options.table && count <= samples_) question.other_micro_batches.push_back(count);
  }
  for (std::size_t stage = 0; stage < costs_.device_of_stage.size(); ++stage) {
    const auto device = static_cast<std::size_t>(costs_.device_of_stage[stage]);
    const bool here = parts_->stages.has(static_cast<int>(stage));
    if (!here && stage >= budgets_.size()) continue;
    question.budgets.resize(std::max(question.budgets.size(), device + 1), 0);
    question.budgets[device] =
        here ? memory_usage(parts_->stages[static_cast<int>(stage)].device()).budget
             : budgets_[stage];
  }
  return plan::suggest_fit(question, costs_);
}

void Pipeline::Impl::set_mode(pipeline::StepPlan::Mode mode) {
  mode_ = mode;
  if (mode == pipeline::StepPlan::Mode::Training)
    model.train();
  else
    model.eval();
}

std::int64_t Pipeline::Impl::step_number() const {
  const std::lock_guard lock(mutex_);
  return step_number_;
}

void Pipeline::Impl::set_step_number(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  step_number_ = step;
  evaluations_ = 0;
}

void Pipeline::Impl::remember_costs(simulate::Costs costs) {
  const std::lock_guard lock(mutex_);
  costs_ = std::move(costs);
}

}  // namespace trestle
