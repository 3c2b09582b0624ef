#include "trestle/sharding/join.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/batch_norm_kernel.h"
#include "trestle/sharding/join_protocol.h"
#include "trestle/sharding/model_checks.h"
#include "trestle/sharding/sharded_impl.h"
#include "trestle/sharding/sync_batch_norm.h"

namespace trestle {

using sharding::JoinProtocol;
using Step = JoinProtocol::Step;

namespace {

// Zeroing it in place makes it another one.
std::pair<const void*, std::uint32_t> seen(const at::Tensor& gradient) {
  if (!gradient.defined()) return {};
  return {gradient.unsafeGetTensorImpl(), gradient._version()};
}

bool has_sync_batch_norm(const torch::nn::Module& module) {
  for (const auto& part : module.modules())
    if (dynamic_cast<const sharding::SyncBatchNormImpl*>(part.get()) != nullptr) return true;
  return false;
}

}  // namespace

bool Sharded::Impl::has_synced_norms() const {
  if (ranks_.all.size() == 1) return false;
  bool synced = module_ && has_sync_batch_norm(*module_);
  for (const auto& layer : graph_.layers)
    synced = synced || (layer.module && has_sync_batch_norm(*layer.module.make()));
  for (const auto& [name, buffer] : buffers_)
    synced = synced || device::has_batch_norm_kernel(buffer);
  return synced;
}

void Sharded::Impl::check_can_join() const {
  if (!module_ && graph_.layers.empty())
    throw UsageError("join() is for a model with a forward of its own",
                     {.hint = "A pipeline's replicas have the same number of batches."});
  if (join_) throw StateError("join() inside of join()", {.hint = "Give one join() all models."});
  if (options.reproducible.pieces > 0)
    throw UsageError("join() with ShardOptions::reproducible, whose pieces all ranks have",
                     {.hint = "Leave one of them out."});
  if (no_syncs_ > 0) throw StateError("join() inside of no_sync()");
  if (has_synced_norms())
    throw UsageError(
        "join() with batch norms that count all ranks' samples (SyncBatchNorm): a rank without "
        "batches does not run them",
        {.hint = "Give such ranks empty batches, or take batch norms of each rank's own samples."});
}

// A number of what the ranks must have alike.
std::size_t Sharded::Impl::join_plan() const {
  std::string words;
  for (const auto& [name, tensor] : parameters_) words += text(name, tensor.requires_grad(), " ");
  return std::hash<std::string>()(words);
}

void Sharded::Impl::begin_join(const std::shared_ptr<JoinProtocol>& join, int number) {
  join_ = join;
  join_number_ = number;
  note_gradients();
  reducer->set_after_pass([this] { note_gradients(); });
  if (join->options().divide == JoinOptions::Divide::RanksWithBatches) join_weight_ = 1;
  reducer->set_weight(join_weight_);
  reducer->set_announcer([this](bool sync, bool weighted, bool after_gradients) {
    if (!after_gradients) earlier_ = earlier_gradients();
    say({.step = sync ? Step::Backward : Step::UnreducedBackward,
         .weighted = sync && weighted,
         .earlier = earlier_});
  });
}

void Sharded::Impl::end_join() {
  join_.reset();
  join_weight_.reset();
  buffers_from_ = 0;
  reducer->set_weight({});
  reducer->set_announcer({});
  reducer->set_after_pass({});
  note_gradients();
}

void Sharded::Impl::check_outside_of_join(const char* call) const {
  if (join_)
    throw UsageError(text(call, " inside join(), where ranks without batches do not call it"),
                     {.hint = "Call it behind join(), on all ranks."});
}

// What has become of gradients since the last backward. Zeros alone do not say that somebody zeroed one: this rank's part of a
// gradient may be zero, or empty, and that of a rank that follows not.
std::vector<JoinProtocol::Earlier> Sharded::Impl::earlier_gradients() const {
  using Earlier = JoinProtocol::Earlier;
  std::vector<Earlier> earlier;
  for (std::size_t i = 0; i < stepped_.size(); ++i) {
    const at::Tensor gradient = stepped_[i].second.grad();
    const bool as_it_came = i < gradients_seen_.size() && gradients_seen_[i] == seen(gradient);
    if (!gradient.defined())
      earlier.push_back(Earlier::None);
    else
      earlier.push_back(as_it_came || gradient.ne(0).any().item<bool>() ? Earlier::Kept
                                                                        : Earlier::Zeroed);
  }
  return earlier;
}

void Sharded::Impl::note_gradients() {
  gradients_seen_.clear();
  if (!join_) return;
  for (const auto& [name, tensor] : stepped_) gradients_seen_.push_back(seen(tensor.grad()));
}

void Sharded::Impl::say_forward() {
  if (!join_ || join_->follows()) return;
  earlier_ = earlier_gradients();
  say({.step = at::GradMode::is_enabled() ? Step::TrainingForward : Step::Forward});
}

void Sharded::Impl::say(JoinProtocol::Word word) {
  if (!join_ || join_->follows()) return;
  word.model = join_number_;
  join_->say(word);
  buffers_from_ = join_->first_rank();
}

// What the ranks that have batches do, as far as it needs all.
void Sharded::Impl::follow(const JoinProtocol::Word& word) {
  const at::AutoGradMode mode(word.step != Step::Forward);
  buffers_from_ = join_->first_rank();
  if (word.step == Step::Forward || word.step == Step::TrainingForward) {
    before_forward();
    next_key();
    if (unsharder_) unsharder_->follow_forward();
    return;
  }
  for (std::size_t i = 0; i < stepped_.size(); ++i) {
    const at::Tensor& parameter = stepped_[i].second;
    if (word.earlier.at(i) == JoinProtocol::Earlier::None) parameter.mutable_grad().reset();
    if (word.earlier.at(i) == JoinProtocol::Earlier::Zeroed)
      parameter.mutable_grad() = at::zeros_like(parameter.detach());
  }
  if (word.step == Step::UnreducedBackward) hold_sync(1);
  reducer->set_weight(word.weighted ? std::optional<double>(0) : std::nullopt);
  reducer->pass_without_samples([this] {
    if (unsharder_) unsharder_->follow_backward();
  });
  reducer->set_weight(join_weight_);
  if (word.step == Step::UnreducedBackward) hold_sync(-1);
}

// Those of the rank that had batches last.
void Sharded::Impl::share_buffers() {
  if (options.broadcast_buffers) share_buffers_of(join_->first_rank());
}

namespace {

void check_models(const std::vector<Sharded::Impl*>& models) {
  if (models.empty()) throw UsageError("join() of no model");
  for (std::size_t i = 0; i < models.size(); ++i) {
    models[i]->check_can_join();
    if (models[i]->all_ranks().ranks() != models[0]->all_ranks().ranks())
      throw UsageError("join() of models on other ranks");
    for (std::size_t k = 0; k < i; ++k)
      if (models[i] == models[k]) throw UsageError("join() of one model twice");
  }
}

// Ends all models' part in it, however it goes.
struct Joined {
  Joined(const std::vector<Sharded::Impl*>& all, const std::shared_ptr<JoinProtocol>& join)
      : models(all) {
    for (std::size_t i = 0; i < models.size(); ++i)
      models[i]->begin_join(join, static_cast<int>(i));
  }
  Joined(const Joined&) = delete;
  Joined& operator=(const Joined&) = delete;
  ~Joined() {
    for (auto* const model : models) model->end_join();
  }
  std::vector<Sharded::Impl*> models;
};

void follow_others(const std::vector<Sharded::Impl*>& models, JoinProtocol& join) {
  for (auto* const model : models) {
    if (!model->reducer->has_unreduced()) continue;
    throw StateError("the batches of this rank ended inside of no_sync()",
                     {.hint = "The last backward of a rank is outside of no_sync()."});
  }
  join.follow();
  for (;;) {
    const JoinProtocol::Word word = join.say({});
    if (word.step == Step::Ended) break;
    models.at(static_cast<std::size_t>(word.model))->follow(word);
    if (word.step == Step::Backward && join.options().after_backward)
      join.options().after_backward();
  }
  for (auto* const model : models) model->share_buffers();
}

}  // namespace

void join(const std::vector<Sharded*>& given, const std::function<void()>& batches,
          const JoinOptions& options) {
  std::vector<Sharded::Impl*> models;
  for (Sharded* const model : given) {
    if (model == nullptr) throw UsageError("join() of a model that is not there");
    models.push_back(&model->impl());
  }
  check_models(models);
  std::size_t plan =
      static_cast<std::size_t>(options.divide) * 2 + static_cast<std::size_t>(options.first_end);
  for (const auto* const model : models) plan = plan * 31 + model->join_plan();
  const comm::Group& ranks = models[0]->all_ranks();
  std::size_t gradients = 0;
  for (const auto* const model : models)
    gradients = std::max(gradients, model->named_parameters().size());
  const auto protocol =
      std::make_shared<JoinProtocol>(ranks, static_cast<std::uint32_t>(plan), gradients, options);
  const Joined joined(models, protocol);
  try {
    batches();
    follow_others(models, *protocol);
  } catch (const std::exception& error) {
    if (!protocol->threw_for_first_end()) ranks.fail(error.what());
    throw;
  }
}

}  // namespace trestle
