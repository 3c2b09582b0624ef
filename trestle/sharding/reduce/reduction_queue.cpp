#include "trestle/sharding/reduce/reduction_queue.h"
#include "trestle/base/text.h"
#include "trestle/comm/purpose.h"

#include <ATen/Functions.h>

#include <utility>

namespace trestle::sharding {
namespace {

comm::Group without_check(const comm::Group& group) {
  return group.valid() ? group.with_check(comm::Check::Off) : group;
}

// Collectives take real numbers. A complex sum is the sum of both parts.
at::Tensor real_view(const at::Tensor& flat) {
  return flat.is_complex() ? at::view_as_real(flat).view({-1}) : flat;
}

}  // namespace

ReductionQueue::ReductionQueue(FlatParameterGroups groups, RankGroups ranks,
                               const ShardOptions& options, ReducerStats& stats)
    : ranks_(std::move(ranks)), options_(options), stats_(stats) {
  unchecked_ = {.all = without_check(ranks_.all),
                .shard = without_check(ranks_.shard),
                .gathers = {},
                .replicate = without_check(ranks_.replicate)};
  if (options_.buckets.hook.make) hook_.emplace(options_.buckets.hook, ranks_.all);
  set_groups(std::move(groups));
}

void ReductionQueue::set_groups(FlatParameterGroups groups) {
  groups_ = std::move(groups);
  trained_.clear();
  for (std::size_t g = 0; g < groups_.size(); ++g)
    if (groups_[g]->trained()) trained_.push_back(g);
  end_pass();
  if (const int micro_batches = options_.reproducible.micro_batches; micro_batches > 0)
    sums_.emplace(micro_batches / ranks_.all.size(), groups_.size());
}

int ReductionQueue::contributions() const {
  return sums_ ? options_.reproducible.micro_batches : ranks_.all.size();
}

double ReductionQueue::post_divide_factor(std::size_t group) const {
  if (groups_[group]->reduce_dtype() != at::kHalf || hook_) return 1;
  double divisor = 1;  // a power of two near the root of the count: dividing by it is exact
  while (4 * divisor * divisor <= contributions()) divisor *= 2;
  return divisor;
}

void ReductionQueue::begin_pass(Ends ends) {
  end_pass();
  ends_ = ends;
}

void ReductionQueue::end_pass() {
  reductions_.clear();
  reductions_.resize(groups_.size());
  next_ = next_over_replicas_ = 0;
}

void ReductionQueue::begin_ready(const std::function<bool(std::size_t)>& is_complete) {
  while (next_ < trained_.size() && is_complete(trained_[next_])) {
    bound_in_flight();
    begin(trained_[next_]);
    ++next_;
  }
  sum_over_replicas(Wait::No);
}

void ReductionQueue::begin_all() {
  for (; next_ < trained_.size(); ++next_) {
    if (hook_) bound_in_flight();
    begin(trained_[next_]);
  }
}

// Bounds memory where whole gradients are freed after their reduction: a rank that is ahead waits,
// instead of holding all gradients. If whole gradients stay, reduced shards move to their place in
// them.
//
// It does not wait for the sum over replicas: a rank at its end asks all ranks first which
// parameters were used. It does not wait either where this rank may skip units: it then gathers all
// of them before it begins their reductions.
//
// A hook may communicate in both its halves. So all ranks call the halves of all groups in one
// order, also at the end of a backward.
void ReductionQueue::bound_in_flight() {
  constexpr std::size_t most = 2;
  if (options_.level == ShardLevel::None || next_ < most) return;
  if (hook_) return finish_hook(next_ - most);
  const bool may_skip_units = options_.unused_parameters != UnusedParameters::Refuse;
  if (may_skip_units && options_.level == ShardLevel::Parameters) return;
  const std::size_t place = next_ - most;
  reductions_[trained_[place]].over_shards.wait();
  if (place >= next_over_replicas_) put_in_place(trained_[place]);
}

void ReductionQueue::put_in_place(std::size_t group) {
  Reduction& reduction = reductions_[group];
  if (options_.level == ShardLevel::OptimizerState && reduction.reduced.defined())
    reduction.reduced = groups_[group]->put_shard(reduction.reduced);
}

// Returns whether the group's gradients are those of all of this rank's micro-batches, ready to be
// reduced.
bool ReductionQueue::add_micro_batch(std::size_t group) {
  if (!sums_) return true;
  FlatParameterGroup& flat = *groups_[group];
  const at::Tensor own = flat.gradients();
  flat.drop_gradients();
  flat.set_gradients(sums_->add(group, own));
  return ends_ == Ends::Step;
}

void ReductionQueue::begin(std::size_t group) {
  FlatParameterGroup& flat = *groups_[group];
  Reduction& reduction = reductions_[group];
  reduction.begun = true;
  if (!add_micro_batch(group)) return;
  ++stats_.reductions;
  stats_.reduced += static_cast<Bytes>(flat.gradients().nbytes());
  if (hook_) return begin_hook(group);
  if (options_.level == ShardLevel::None) {
    reduction.work = unchecked_.all.all_reduce(real_view(flat.gradients()));
    reduction.entry =
        recorder_.begin(ShardEvent::What::Reduce, static_cast<int>(group), &reduction.work);
    return;
  }
  reduction.reduced = at::empty({flat.layout().shard_size()}, flat.gradients().options());
  reduction.over_shards = reduction.work =
      unchecked_.shard.reduce_scatter(real_view(reduction.reduced), real_view(flat.gradients()));
  reduction.entry = recorder_.begin(ShardEvent::What::Reduce, static_cast<int>(group),
                                    ranks_.replicate.valid() ? nullptr : &reduction.work);
  if (options_.level != ShardLevel::OptimizerState) flat.drop_gradients();
}

void ReductionQueue::begin_hook(std::size_t group) {
  Reduction& reduction = reductions_[group];
  reduction.entry = recorder_.begin(ShardEvent::What::Reduce, static_cast<int>(group));
  reduction.wait_for_hook = hook_->begin(*groups_[group], {.index = static_cast<int>(next_),
                                                           .is_last = next_ + 1 == trained_.size(),
                                                           .step = stats_.steps});
}

void ReductionQueue::finish_hook(std::size_t place) {
  Reduction& reduction = reductions_[trained_[place]];
  if (std::exchange(reduction.hook_is_done, true)) return;
  hook_->finish(static_cast<int>(place), std::exchange(reduction.wait_for_hook, {}));
  reduction.entry.end();
  if (options_.level != ShardLevel::None)
    reduction.reduced = groups_[trained_[place]]->keep_own_shard();
}

// The all-reduce of shards over replicas, in the order of the reduce-scatters.
void ReductionQueue::sum_over_replicas(Wait wait) {
  if (!ranks_.replicate.valid() || hook_ || ends_ == Ends::MicroBatch) return;
  for (; next_over_replicas_ < next_; ++next_over_replicas_) {
    const std::size_t group = trained_[next_over_replicas_];
    Reduction& reduction = reductions_[group];
    if (wait == Wait::No && !reduction.work.done()) return;
    wait_for(group);
    put_in_place(group);
    stats_.reduced_over_replicas += static_cast<Bytes>(reduction.reduced.nbytes());
    reduction.work = unchecked_.replicate.all_reduce(real_view(reduction.reduced));
  }
}

void ReductionQueue::wait_for(std::size_t group) {
  comm::with_purpose(
      [&] {
        return text("in the reduction of the gradients of ", groups_[group]->describe_names());
      },
      [&] { reductions_[group].work.wait(); });
}

void ReductionQueue::wait() {
  sum_over_replicas(Wait::Yes);
  for (const std::size_t g : trained_) wait_for(g);
  for (std::size_t place = 0; place < trained_.size(); ++place) {
    if (hook_) finish_hook(place);
    reductions_[trained_[place]].entry.end();
  }
}

}  // namespace trestle::sharding
