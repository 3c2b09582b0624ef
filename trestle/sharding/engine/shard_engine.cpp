#include "trestle/sharding/engine/shard_engine.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <map>
#include <set>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"
#include "trestle/comm/purpose.h"
#include "trestle/device/named_tensors.h"
#include "trestle/gradient_norm/sharded_norm.h"
#include "trestle/optim/gradient_norms.h"
#include "trestle/sharding/flat/broadcast_tensors.h"
#include "trestle/sharding/flat/model_checks.h"
#include "trestle/sharding/options/option_checks.h"
#include "trestle/sharding/options/reproducible.h"

namespace trestle::sharding {

NamedTensors each_once(const NamedTensors& named) {
  std::set<const void*> seen;
  NamedTensors once;
  for (const auto& [name, tensor] : named)
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) once.emplace_back(name, tensor);
  return once;
}

ShardEngine::ShardEngine(const ShardOptions& options, const RankGroups& ranks)
    : options_(options),
      ranks_(ranks),
      precision_(options.precision),
      builder_(options_, ranks_, precision_) {
  check_options(options_, ranks_);
}

ShardEngine::~ShardEngine() {
  const bool current = options_.level == ShardLevel::Parameters || !reducer_ ||
                       gathered_at_ == reducer_->stats().steps;
  const auto content =
      current ? FlatParameterGroup::Content::Current : FlatParameterGroup::Content::Outdated;
  try {
    for (const auto& group : groups_) group->abandon(content);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // Out of memory: the parameters stay as they are.
  }
}

void ShardEngine::start_from_rank_0(const NamedTensors& parameters,
                                    const NamedTensors& buffers) const {
  check_can_be_sharded(parameters, buffers, options_.level);
  check_same_model(ranks_.all, parameters, buffers);
  if (!options_.broadcast.at_start) return;
  NamedTensors all = parameters;
  all.insert(all.end(), buffers.begin(), buffers.end());
  broadcast_tensors(ranks_.all, without_names(all));
}

void ShardEngine::finish(const NamedTensors& parameters, const NamedTensors& buffers,
                         GradientReducer::Driver driver,
                         const std::vector<std::size_t>& unit_order) {
  parameters_ = parameters;
  buffers_ = buffers;
  precision_.check_names(parameters_);
  for (const auto& named : parameters_)
    if (named.second.requires_grad()) trained_.push_back(named);
  if (options_.reproducible.micro_batches > 0)
    for (const auto& [name, tensor] : trained_) check_reproducible_device(tensor.device());
  if (options_.level == ShardLevel::Parameters) {
    start_from_rank_0({}, buffers_);
    builder_.reverse();
    groups_ = builder_.groups();
    units_ = builder_.units();
  } else {
    start_from_rank_0(parameters_, buffers_);
    std::vector<std::size_t> order(trained_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
    groups_ = builder_.make_buckets(trained_, order);
    for (auto& group : builder_.make_frozen_groups(parameters_)) groups_.push_back(group);
    if (options_.level != ShardLevel::None)
      for (const auto& group : groups_) group->flatten();
  }
  stepped_ = options_.level == ShardLevel::None ? trained_ : shards_of(trained_);
  reducer_ = std::make_shared<GradientReducer>(groups_, ranks_, options_, driver);
  reducer_->attach();
  if (options_.level != ShardLevel::Parameters) return;
  unsharder_ =
      std::make_shared<ParameterUnsharder>(groups_, units_, ranks_, reducer_, options_, driver);
  reducer_->set_observer(unsharder_.get());
  unsharder_->expect(unit_order);
}

NamedTensors ShardEngine::shards_of(const NamedTensors& trained) const {
  std::map<const void*, at::Tensor> shard_of;
  for (const auto& group : groups_)
    for (std::size_t i = 0; i < group->size(); ++i)
      shard_of[group->parameter(i).unsafeGetTensorImpl()] = group->shards()[i];
  NamedTensors shards;
  for (const auto& [name, tensor] : trained)
    shards.emplace_back(name, shard_of.at(tensor.unsafeGetTensorImpl()));
  return shards;
}

void ShardEngine::check_unchanged() const {
  reducer_->check_attached();
  std::size_t next = 0;  // trained_ has the order of parameters_
  for (const auto& [name, tensor] : parameters_) {
    const bool known = next < trained_.size() && trained_[next].second.is_same(tensor);
    next += known ? 1 : 0;
    if (known || !tensor.requires_grad()) continue;
    throw StateError(
        text("parameter '", name, "' was frozen when the model was sharded, and is trained now"),
        {.hint = "Make another Sharded, or freeze parameters only after it is made."});
  }
}

// The user wrote to the parameters, and the optimizer to the shards: one of both would be lost.
void ShardEngine::check_not_written_twice() const {
  for (const auto& group : groups_) {
    if (gathered_at_ >= 0 && group->is_written() && group->stale())
      throw StateError(text("parameter '", group->name(0),
                            "', or another one of its group, was written to after the optimizer's "
                            "step, in the dtype in which the model computes"),
                       {.hint = "Write to the model's parameters inside unshard(), where they hold "
                                "the values of the last step."});
    group->take_back();
  }
}

void ShardEngine::agree(RankHandshake::Call call) const {
  if (options_.level == ShardLevel::None) return;
  try {
    RankHandshake(ranks_.all, {.call = call}).check();
  } catch (const StateError& error) {
    ranks_.all.fail(error.what());  // a rank in its backward compares only at the end of it
    throw;
  }
}

void ShardEngine::prepare_forward(int buffers_from) {
  agree(at::GradMode::is_enabled() ? RankHandshake::Call::TrainingForward
                                   : RankHandshake::Call::Evaluation);
  check_not_written_twice();
  rebuild_buckets();
  gather_stepped();
  if (unsharder_) unsharder_->begin_model();
  if (options_.broadcast.buffers && at::GradMode::is_enabled()) broadcast_buffers(buffers_from);
}

void ShardEngine::broadcast_buffers(int from) const {
  broadcast_tensors(ranks_.all, without_names(buffers_), from);
}

// Whether an optimizer stepped on some rank since the parameters were gathered.
bool ShardEngine::any_rank_stepped() const {
  const bool stale =
      std::any_of(groups_.begin(), groups_.end(), [](const auto& group) { return group->stale(); });
  const at::Tensor any = at::full({1}, stale ? 1 : 0, at::kByte);
  comm::with_purpose(
      [] { return "while the ranks asked each other whether an optimizer has stepped"; },
      [&] { ranks_.gathers.all_reduce(any, comm::Reduce::Max).wait(); });
  return any.item<std::uint8_t>() != 0;
}

// The levels between None and Parameters: after a step each rank holds its shard of the new
// parameters.
void ShardEngine::gather_stepped() {
  if (options_.level == ShardLevel::None || options_.level == ShardLevel::Parameters) return;
  // A reduced backward is followed by a step. Without one the ranks ask each other.
  bool stepped = gathered_at_ != reducer_->stats().steps, all = gathered_at_ < 0;
  if (!stepped) stepped = all = any_rank_stepped();
  if (!stepped) return;
  gathered_at_ = reducer_->stats().steps;
  for (const auto& group : groups_) {
    if (!group->trained() && !all) continue;
    group->forget_gathered();
    group->gather(ranks_.gathers);
  }
  auto wait = recorder_.begin(ShardEvent::What::Wait, -1);
  for (const auto& group : groups_) group->wait_gathered();
  wait.end();
}

// The trained parameters in the order in which rank 0 saw their gradients come.
std::vector<std::size_t> ShardEngine::observed_order() const {
  std::vector<std::size_t> observed;
  for (const auto& [group, index] : reducer_->observed_order())
    for (std::size_t i = 0; i < trained_.size(); ++i)
      if (trained_[i].second.is_same(groups_[group]->parameter(index))) observed.push_back(i);
  std::vector<std::size_t> order;
  std::vector<bool> known(trained_.size(), false);
  const auto add = [&](std::size_t i) {
    if (i >= known.size() || known[i]) return;
    known[i] = true;
    order.push_back(i);
  };
  for (const std::size_t i : comm::broadcast_value(ranks_.all, observed, 0)) add(i);
  for (std::size_t i = trained_.size(); i > 0; --i) add(i - 1);
  return order;
}

// Level None: after the first step the buckets follow the order in which gradients came.
void ShardEngine::rebuild_buckets() {
  if (options_.level != ShardLevel::None || rebuilt_ || reducer_->stats().steps == 0) return;
  if (reducer_->has_unreduced()) return;  // the buckets hold them
  rebuilt_ = true;
  groups_ = builder_.make_buckets(trained_, observed_order());
  reducer_->rebuild(groups_);
  hand_out_recorder();
}

void ShardEngine::unshard() {
  ++unshards_;
  gather_stepped();
  if (unsharder_) unsharder_->unshard_all();
}

void ShardEngine::reshard() {
  for (const auto& group : groups_) group->take_back();
  if (unsharder_) unsharder_->reshard_all();
  if (unshards_ > 0) --unshards_;
}

void ShardEngine::shards_changed() {
  gathered_at_ = -1;
  if (unsharder_) unsharder_->refresh();
  if (unshards_ > 0) gather_stepped();
}

void ShardEngine::abandon_step() {
  reducer_->abort_pass();
  reducer_->set_sync(false);
  for (const auto& group : groups_) {
    group->drop_accumulated();
    group->forget_own_gradients();
  }
  if (options_.level == ShardLevel::None) return;  // grad() is the program's
  for (const auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

void ShardEngine::drop_zeroed_gradients() {
  for (const auto& group : groups_)
    if (group->trained()) group->drop_zeroed();
}

void ShardEngine::zero_grad() {
  for (const auto& [name, tensor] : stepped_) tensor.mutable_grad().reset();
  for (const auto& [name, tensor] : parameters_) tensor.mutable_grad().reset();
  for (const auto& group : groups_) {
    group->drop_accumulated();
    group->forget_own_gradients();
  }
  reducer_->restart_step();
}

double ShardEngine::clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& clip) const {
  const std::vector<at::Tensor> own = without_names(stepped_);
  if (options_.reproducible.micro_batches > 0) {
    optim::check_clipping(max_norm, clip);
    const double norm = exact_norm(own, ranks_.shard, clip.p);
    return optim::clip_by(own, {{.value = norm, .dtype = at::kDouble}}, max_norm, clip);
  }
  if (options_.level == ShardLevel::None) return optim::clip_grad_norm(own, max_norm, clip);
  return gradient_norm::clip_over_ranks(own, {ranks_.shard}, max_norm, clip);
}

void ShardEngine::hand_out_recorder() {
  for (std::size_t g = 0; g < groups_.size(); ++g)
    groups_[g]->set_recorder(recorder_, static_cast<int>(g));
  reducer_->set_recorder(recorder_);
  if (unsharder_) unsharder_->set_recorder(recorder_);
}

void ShardEngine::start_recording() {
  recorder_ = ShardRecorder::start();
  hand_out_recorder();
}

ShardRecord ShardEngine::stop_recording() {
  if (!recorder_.is_on()) throw StateError("stop_recording() without start_recording()");
  ShardRecord record = std::exchange(recorder_, {}).take();
  hand_out_recorder();
  for (const Unit& unit : units_) record.units.push_back(unit.name);
  return record;
}

ShardReport ShardEngine::report() const {
  const ReducerStats& stats = reducer_->stats();
  ShardReport report{.groups = static_cast<int>(groups_.size()),
                     .steps = stats.steps,
                     .reductions = stats.reductions,
                     .reduced = stats.reduced,
                     .reduced_over_replicas = stats.reduced_over_replicas,
                     .unused_checks = stats.unused_checks,
                     .waited_seconds = stats.waited_seconds};
  for (const auto& group : groups_) {
    report.gathers += group->gathers();
    report.gathers_from_neighbours += group->gathers_from_neighbours();
    report.gathered += group->gathers() * group->bytes();
    report.gathered_from_neighbours += group->gathers_from_neighbours() * group->bytes();
  }
  return report;
}

std::string ShardEngine::description() const {
  std::int64_t count = 0;
  for (const auto& [name, tensor] : parameters_) count += tensor.numel();
  const auto groups = static_cast<std::int64_t>(groups_.size());
  const bool in_units = options_.level == ShardLevel::Parameters;
  const std::string words =
      text("level ", to_string(options_.level), " on the mesh ", ranks_.mesh, ": ",
           counted(ranks_.all.size(), "rank"), ", ", counted(count, "parameter"), " in ",
           counted(groups, in_units ? "flat group" : "bucket"));
  if (!in_units) return words;
  return text(words, " of ", counted(static_cast<std::int64_t>(units_.size()), "unit"));
}

}  // namespace trestle::sharding
