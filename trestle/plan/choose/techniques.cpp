#include "trestle/plan/choose/techniques.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::plan {
namespace {

// A technique before its strategies are searched.
struct Technique {
  const char* name;
  const char* when;
  Kept kept;
  int devices;
};

int nodes_of(const Machine& machine, int devices) {
  return (devices + machine.devices_per_node - 1) / machine.devices_per_node;
}

// The rows of HSDP's mesh: one for each node, or two in one node.
int rows_of_hsdp(const Machine& machine, int devices) {
  return std::max(nodes_of(machine, devices), 2);
}

Kept one_stage(int data) { return {.tensor = 1, .pipeline = 1, .data = data}; }

Kept sharded(int devices, int level) {
  Kept kept = one_stage(devices);
  kept.level = level;
  kept.replicate = 1;
  return kept;
}

// "a, and --keep has b", or nothing if the two agree.
std::string contradiction(const Kept& technique, const Kept& request) {
  const auto differ = [&](auto member) {
    return technique.*member && request.*member && *(technique.*member) != *(request.*member);
  };
  Kept mine, its;
  const auto add = [&](auto member) {
    if (!differ(member)) return;
    mine.*member = technique.*member;
    its.*member = request.*member;
  };
  add(&Kept::micro_batch);
  add(&Kept::schedule);
  add(&Kept::recompute);
  const std::string words = to_string(mine);
  return words.empty() ? words : text("it has ", words, ", and --keep has ", to_string(its));
}

// Keeps what the request keeps too.
void add_kept(const Kept& request, Kept* kept) {
  const bool is_run = describes_run(*kept);
  const auto add = [&](auto member) {
    if (request.*member) kept->*member = request.*member;
  };
  add(&Kept::micro_batch);
  add(&Kept::recompute);
  add(&Kept::recompute_layers);
  add(&Kept::recompute_stages);
  add(&Kept::chunks);
  add(&Kept::schedule);
  add(&Kept::sequence_parallel);
  add(&Kept::precision);
  kept->any_precision = request.any_precision;
  // The search would take the usual value of each choice that is left. Stages and data ranks imply
  // the tensor ranks.
  if (!is_run && describes_run(*kept)) kept->tensor.reset();
}

std::vector<Technique> techniques_on(const Machine& machine, const PlanRequest& request) {
  const int n = request.devices;
  Kept parts{.tensor = 1, .pipeline = n, .data = 1};
  parts.schedule = "gpipe";
  parts.micro_batch = static_cast<int>(std::min(request.batch, most_examples));
  Kept checkpointed = sharded(n, 0);
  checkpointed.recompute = BlockRecompute::All;
  Kept hsdp = sharded(n, 3);
  hsdp.replicate = rows_of_hsdp(machine, n);
  Kept offloaded = one_stage(n);
  offloaded.offload = true;
  offloaded.replicate = 1;
  Kept tensor;
  tensor.level = 0;
  std::vector<Technique> all = {
      {"one device", "when everything fits on it, and it is fast enough", one_stage(1), 1},
      {"model parallel",
       "when the model does not fit on one device, and its layers need the whole batch at once; "
       "one "
       "device computes at a time",
       parts, n},
      {"pipeline",
       "when the model does not fit on one device, and links are slow: only the tensors at the "
       "cuts are "
       "sent",
       {.tensor = 1, .pipeline = n, .data = 1},
       n},
      {"DataParallel",
       "when the model fits on one device, and one process with an unchanged training loop has "
       "them all",
       sharded(n, 0), n},
      {"DDP", "when the model fits on one device, and you want more samples per second",
       sharded(n, 0), n},
      {"ZeRO-1", "as DDP, when the optimizer's state does not fit; it sends no more", sharded(n, 1),
       n},
      {"ZeRO-2", "as ZeRO-1, when gradients do not fit either", sharded(n, 2), n},
      {"ZeRO-3, FSDP", "as ZeRO-2, when the weights do not fit either; it sends more than DDP",
       sharded(n, 3), n},
      {"HSDP", "as ZeRO-3, when there are several machines: weights are gathered within each", hsdp,
       n},
      {"tensor parallel",
       "when a layer does not fit, or the batch is too small to share; its ranks need the fastest "
       "links",
       tensor, n},
      {"checkpointing", "as DDP, when activations do not fit; the forward is computed twice",
       checkpointed, n},
      {"offload", "as ZeRO, when no device has room for its shard, and the host has", offloaded, n},
  };
  for (Technique& technique : all) {
    if (!technique.kept.recompute && !request.kept.recompute)
      technique.kept.recompute = BlockRecompute::None;
    if (!technique.kept.offload) technique.kept.offload = false;
  }
  return all;
}

PlanRequest request_with(const PlanRequest& request, const Technique& technique) {
  PlanRequest own = request;
  own.devices = technique.devices;
  own.kept = technique.kept;
  own.all_devices = true;
  own.top = 1;
  own.simulate_all = false;
  return own;
}

// The most tensor ranks of a node that are legal.
std::optional<int> most_tensor_ranks(const PlannedModel& model, const Machine& machine,
                                     PlanRequest request) {
  for (int ranks = std::min(request.devices, machine.devices_per_node); ranks > 1; --ranks) {
    if (request.devices % ranks != 0) continue;
    request.kept.tensor = ranks;
    if (has_legal_strategy(model, request)) return ranks;
  }
  return std::nullopt;
}

// DataParallel copies the weights of the first device to all devices before each step.
void add_broadcast(const PlannedModel& model, std::int64_t batch, TechniqueRow* row) {
  const Strategy& strategy = row->plan ? row->plan->strategy : row->too_large->strategy;
  const StrategyCosts costs = model.costs(strategy, micro_batches_of(strategy, batch));
  const double broadcast = costs.data_messages.at(0) / 2;
  StepPrediction& step = row->plan ? row->plan->step : row->too_large_step;
  step.seconds += broadcast;
  step.exposed += broadcast;
  if (!row->plan) return;
  Plan& plan = *row->plan;
  const double slower = static_cast<double>(batch) / step.seconds / plan.samples_per_second;
  plan.samples_per_second *= slower;
  plan.mfu *= slower;
  plan.money /= slower;
}

// Whether the row's strategy neither takes longer nor needs less than without recomputation: a
// model that keeps the last micro-batch of a stage recomputes nothing if that is the only one.
bool recomputes_nothing(const PlannedModel& model, const Machine& machine, PlanRequest request,
                        const TechniqueRow& row) {
  const Strategy& strategy = row.plan ? row.plan->strategy : row.too_large->strategy;
  const Ledger& worst = row.plan ? row.plan->worst : row.too_large->worst;
  Strategy plain = strategy;
  plain.recompute = BlockRecompute::None;
  const std::int64_t n = micro_batches_of(strategy, request.batch);
  if (model.worst_ledger(plain, n).total() > worst.total()) return false;
  request.kept.recompute = BlockRecompute::None;
  request.kept.micro_batch = strategy.micro_batch;
  request.kept.recompute_layers.reset();
  request.kept.recompute_stages.reset();
  request.memory = std::numeric_limits<double>::max();
  request.goal = Goal::Time;
  const PlanResult found = find_plans(model, machine, request);
  return found.best.front().step.seconds >=
         (row.plan ? row.plan->step : row.too_large_step).seconds;
}

TechniqueRow row_of(const PlannedModel& model, const Machine& machine, const PlanRequest& request,
                    Technique technique) {
  TechniqueRow row{.name = technique.name, .when = technique.when, .devices = technique.devices};
  const bool data_parallel = row.name == "DataParallel";
  if (data_parallel && technique.devices > machine.devices_per_node) {
    row.not_legal = text("one process has the devices of one node: ", machine.devices_per_node,
                         " of ", technique.devices);
    return row;
  }
  const bool alone = row.name == "one device" || row.name == "checkpointing";
  if (!alone && technique.devices == 1) {
    row.not_legal = "it needs two devices";
    return row;
  }
  row.not_legal = contradiction(technique.kept, request.kept);
  if (!row.not_legal.empty()) return row;
  add_kept(request.kept, &technique.kept);
  if (row.name == "tensor parallel") {
    technique.kept.tensor = most_tensor_ranks(model, machine, request_with(request, technique))
                                .value_or(technique.devices);
  }
  row.kept = technique.kept;
  const PlanRequest own = request_with(request, technique);
  std::vector<RuleCount> rules;
  if (legal_strategies(model, own, &rules).empty()) {
    row.not_legal = rules.empty() ? "no strategy is legal" : rules.front().why;
    return row;
  }
  PlanResult found = find_plans(model, machine, own);
  if (found.best.empty()) {
    row.too_large = std::move(found.least_memory);
    row.too_large_step = found.least_memory_step;
  } else {
    row.plan = std::move(found.best.front());
  }
  if (data_parallel) add_broadcast(model, request.batch, &row);
  if (row.name == "checkpointing" && recomputes_nothing(model, machine, own, row)) {
    row.plan.reset();
    row.too_large.reset();
    row.not_legal = "the model recomputes nothing in one stage";
  }
  return row;
}

}  // namespace

void check_kept_of_techniques(const Kept& kept) {
  Kept degrees;
  degrees.tensor = kept.tensor;
  degrees.pipeline = kept.pipeline;
  degrees.data = kept.data;
  degrees.level = kept.level;
  degrees.replicate = kept.replicate;
  degrees.offload = kept.offload;
  const std::string words = to_string(degrees);
  if (words.empty()) return;
  throw UsageError(text("--keep ", words, ": the techniques that are compared differ in this"),
                   {.hint = "Leave it out here. trestle plan --keep searches with it."});
}

bool is_ahead(const Plan& plan, const Plan& other, Goal goal) {
  const double bytes = plan.worst.total(), other_bytes = other.worst.total();
  if (goal == Goal::Money) return plan.money < other.money;
  if (goal == Goal::Memory && bytes != other_bytes) return bytes < other_bytes;
  return plan.step.seconds < other.step.seconds;
}

std::vector<TechniqueRow> compare_techniques(const PlannedModel& model, const Machine& machine,
                                             const PlanRequest& request) {
  check_kept_of_techniques(request.kept);
  std::vector<TechniqueRow> rows;
  for (const Technique& technique : techniques_on(machine, request))
    rows.push_back(row_of(model, machine, request, technique));
  return rows;
}

BestOfAll best_of_all(const std::vector<TechniqueRow>& rows, const PlannedModel& model,
                      const Machine& machine, const PlanRequest& request) {
  std::optional<BestOfAll> best;
  // Fewer devices come later: of equally good plans theirs is taken.
  const auto add = [&](const PlanRequest& own) {
    PlanResult result = find_plans(model, machine, own);
    const bool better =
        !best || (!result.best.empty() &&
                  (best->result.best.empty() ||
                   !is_ahead(best->result.best.front(), result.best.front(), request.goal)));
    if (better) best = BestOfAll{.request = own, .result = std::move(result)};
  };
  PlanRequest own = request;
  own.all_devices = true;  // fewer devices have a search of their own
  for (bool last = false; !last; own.devices = own.devices % 2 == 0 ? own.devices / 2 : 1) {
    last = own.devices <= 1;
    if (has_legal_strategy(model, own)) add(own);
  }
  // A row may be what a search leaves out, such as offload.
  for (const TechniqueRow& row : rows) {
    if (!row.plan || row.name == "DataParallel") continue;  // never better than DDP
    if (best && !best->result.best.empty() &&
        !is_ahead(*row.plan, best->result.best.front(), request.goal))
      continue;
    own.devices = row.devices;
    own.kept = row.kept;
    add(own);
  }
  if (!best) find_plans(model, machine, request);  // it tells why
  return *best;
}

}  // namespace trestle::plan
