#include "trestle/sharding/flat/flat_parameter_group.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/purpose.h"
#include "trestle/sharding/flat/content_checksum.h"
#include "trestle/sharding/flat/parameter_storage.h"

namespace trestle::sharding {
namespace {

constexpr const char* freed_message =
    "this parameter is sharded over ranks (ShardLevel::Parameters) and not gathered here: call the "
    "model through Sharded::forward(), or call Sharded::unshard() first";
constexpr const char* gone_message =
    "this parameter was sharded over ranks by a trestle::Sharded that is destroyed, and is not "
    "whole: save Sharded::state() before, or destroy the Sharded while an unshard() lives";

FlatLayout layout_of(const NamedTensors& parameters, int shards) {
  std::vector<std::int64_t> counts;
  for (const auto& [name, parameter] : parameters) counts.push_back(parameter.numel());
  return {std::move(counts), shards};
}

// Integers and complex numbers keep their dtype, as in torch::nn::Module::to().
at::ScalarType cast_dtype(at::ScalarType own, std::optional<at::ScalarType> wanted) {
  return wanted && at::isFloatingType(own) ? *wanted : own;
}

}  // namespace

FlatParameterGroup::FlatParameterGroup(NamedTensors parameters, Use use, int shards,
                                       int shard_index, const ShardOptions& options)
    : parameters_(std::move(parameters)),
      layout_(layout_of(parameters_, shards)),
      shard_index_(shard_index),
      level_(options.level),
      use_(use),
      dtype_(parameters_.at(0).second.scalar_type()),
      compute_dtype_(cast_dtype(dtype_, options.precision.parameters)),
      reduce_dtype_(cast_dtype(compute_dtype_, options.precision.reduce)),
      shard_on_cpu_(options.shards_on_cpu && !parameters_.at(0).second.is_cpu()) {}

Bytes FlatParameterGroup::bytes() const {
  return layout_.size() * static_cast<Bytes>(c10::elementSize(compute_dtype_));
}

at::Tensor FlatParameterGroup::view_of(const at::Tensor& flat, std::size_t i) const {
  const at::Tensor& like = parameter(i);
  // A tensor with gaps, as a slice of a larger one, would reach beyond its place.
  if (!like.is_non_overlapping_and_dense())
    return flat.narrow(0, layout_.offset(i), layout_.count(i)).view(like.sizes());
  return flat.as_strided(like.sizes(), like.strides(), layout_.offset(i));
}

at::Tensor FlatParameterGroup::own_shard(const at::Tensor& flat) const {
  return flat.narrow(0, shard_index_ * layout_.shard_size(), layout_.shard_size());
}

void FlatParameterGroup::flatten() {
  const at::NoGradGuard no_grad;
  const auto options = parameter(0).options().requires_grad(false);
  separate_shard_ = level_ == ShardLevel::Parameters || compute_dtype_ != dtype_ || shard_on_cpu_;
  at::Tensor own = at::zeros({layout_.size()}, options);  // in the parameters' own dtype
  for (std::size_t i = 0; i < size(); ++i) view_of(own, i).copy_(parameter(i).detach());
  flat_ = compute_dtype_ == dtype_ ? own : own.to(compute_dtype_);
  for (std::size_t i = 0; i < size(); ++i) {
    parameter(i).set_data(view_of(flat_, i));
    // An old gradient: the optimizer holds the shards and would never zero it.
    parameter(i).mutable_grad().reset();
  }
  shard_ = own_shard(own);
  if (separate_shard_) shard_ = shard_on_cpu_ ? shard_.to(at::kCPU) : shard_.clone();
  for (std::size_t i = 0; i < size(); ++i) {
    const FlatLayout::Slice slice = layout_.slice(i, shard_index_);
    // A tensor on the shard's memory, with its own version counter.
    at::Tensor shard = shard_.narrow(0, slice.offset, slice.count).variable_data();
    shards_.push_back(shard.set_requires_grad(parameter(i).requires_grad()));
  }
  known_version_ = version_of_shards();
  gathered_checksum_ = content_checksum(shard_);
  untouched_ = version_of_parameters();
}

bool FlatParameterGroup::in_place(std::size_t i) const {
  if (!flat_.defined()) return true;
  const at::Tensor& own = parameter(i);
  return own.storage().unsafeGetStorageImpl() == flat_.storage().unsafeGetStorageImpl() &&
         own.storage_offset() == layout_.offset(i) && own.scalar_type() == compute_dtype_;
}

std::uint64_t FlatParameterGroup::version_of_parameters() const {
  std::uint64_t sum = 0;
  for (const auto& [name, tensor] : parameters_) sum += tensor._version();
  return sum;
}

bool FlatParameterGroup::stale() const {
  return !content_checksum(shard_).equal(gathered_checksum_);
}

bool FlatParameterGroup::is_written() const {
  return gathered_ && separate_shard_ && version_of_parameters() != untouched_;
}

void FlatParameterGroup::take_back() {
  if (!is_written() || stale()) return;
  wait_gathered();
  const at::NoGradGuard no_grad;
  const at::Tensor own = own_shard(flat_);
  const at::Tensor changed =
      own != shard_.to(own.options());  // other elements keep their precision
  shard_.copy_(at::where(changed.to(shard_.device()), own.to(shard_.options()), shard_));
  untouched_ = version_of_parameters();
}

std::uint64_t FlatParameterGroup::version_of_shards() const {
  std::uint64_t sum = 0;
  for (const at::Tensor& shard : shards_) sum += shard._version();
  return sum;
}

void FlatParameterGroup::note_writes() {
  const std::uint64_t version = version_of_shards();
  if (version == known_version_) return;
  bump_versions();
  known_version_ = version;
}

void FlatParameterGroup::note_step() {
  note_writes();
  const bool stays_whole = level_ == ShardLevel::OptimizerState || level_ == ShardLevel::Gradients;
  if (stays_whole && stale()) bump_versions();
}

void FlatParameterGroup::bump_versions() {
  for (const auto& [name, tensor] : parameters_) tensor.unsafeGetTensorImpl()->bump_version();
  untouched_ += size();
}

void FlatParameterGroup::gather(const comm::Group& group) {
  if (gathered_) return;
  note_writes();
  gathered_checksum_ = content_checksum(shard_);
  untouched_ = version_of_parameters();
  if (!separate_shard_ && layout_.shards() == 1) {
    gathered_ = true;
    return;
  }
  if (level_ == ShardLevel::Parameters) allocate_storage(flat_);
  gathered_ = true;
  ++gathers_;
  if (neighbour_part_.defined()) {
    ++gathers_from_neighbours_;
    gathering_ = neighbours_.all_gather(flat_, neighbour_part_);
    gathering_entry_ = recorder_.begin(ShardEvent::What::Gather, number_, &gathering_);
    return;
  }
  const at::NoGradGuard no_grad;
  to_gather_ = shard_;
  if (shard_on_cpu_ || compute_dtype_ != dtype_) to_gather_ = shard_.to(flat_.options());
  gathering_ = group.all_gather(flat_, to_gather_);
  gathering_entry_ = recorder_.begin(ShardEvent::What::Gather, number_, &gathering_);
}

void FlatParameterGroup::set_recorder(ShardRecorder recorder, int number) {
  recorder_ = std::move(recorder);
  number_ = number;
}

std::string FlatParameterGroup::describe_names() const {
  return size() == 1 ? text("'", name(0), "'")
                     : text("'", name(0), "' to '", name(size() - 1), "'");
}

void FlatParameterGroup::wait_gathered() {
  comm::with_purpose([&] { return text("in the all-gather of the parameters ", describe_names()); },
                     [&] { gathering_.wait(); });
  gathering_entry_.end();
  gathering_ = {};
  to_gather_.reset();
}

void FlatParameterGroup::release() {
  if (!gathered_) return;
  wait_gathered();
  take_back();
  free_storage(flat_, freed_message);
  gathered_ = false;
}

void FlatParameterGroup::release_to(const comm::Group& neighbours) {
  if (!gathered_) return;
  wait_gathered();
  const at::NoGradGuard no_grad;
  const std::int64_t count = layout_.size() / neighbours.size();
  if (!neighbour_part_.defined())
    neighbour_part_ = flat_.narrow(0, neighbours.rank() * count, count).clone();
  neighbours_ = neighbours;
  release();
}

void FlatParameterGroup::forget_gathered() {
  take_back();
  gathered_ = false;
}

void FlatParameterGroup::abandon(Content content) {
  if (!flat_.defined() || (gathered_ && content == Content::Current && !stale())) return;
  for (const at::Tensor& shard : shards_) shard.set_data(shard.detach().clone());
  free_storage(flat_, gone_message);
}

at::Tensor& FlatParameterGroup::gradients() {
  if (!gradients_.defined())
    gradients_ = at::empty({layout_.size()},
                           parameter(0).options().dtype(reduce_dtype_).requires_grad(false));
  return gradients_;
}

at::Tensor FlatParameterGroup::gradient_view(std::size_t i) { return view_of(gradients(), i); }

bool FlatParameterGroup::grad_is_view(std::size_t i) const {
  const at::Tensor& grad = parameter(i).grad();
  return grad.defined() && gradients_.defined() && grad.is_alias_of(gradients_);
}

void FlatParameterGroup::accumulate(std::size_t i) {
  at::Tensor& gradient = parameter(i).mutable_grad();
  if (!gradient.defined() || c10::elementSize(reduce_dtype_) <= c10::elementSize(compute_dtype_))
    return;
  const at::NoGradGuard no_grad;
  if (!accumulated_.defined()) {
    accumulated_ = at::empty({layout_.size()},
                             parameter(i).options().dtype(reduce_dtype_).requires_grad(false));
    is_accumulated_.assign(size(), false);
  }
  at::Tensor sum = view_of(accumulated_, i);
  is_accumulated_[i] ? sum.add_(gradient) : sum.copy_(gradient);
  is_accumulated_[i] = true;
  // At level None the optimizer holds the parameters. It clears grad() in zero_grad(), which
  // drop_zeroed() finds.
  level_ == ShardLevel::None ? static_cast<void>(gradient.zero_()) : gradient.reset();
}

at::Tensor FlatParameterGroup::take_accumulated(std::size_t i) {
  is_accumulated_[i] = false;
  return view_of(accumulated_, i);
}

void FlatParameterGroup::drop_accumulated() {
  accumulated_.reset();
  is_accumulated_.clear();
}

void FlatParameterGroup::scale_own_gradient(std::size_t i, double factor) {
  const at::NoGradGuard no_grad;
  if (at::Tensor& gradient = parameter(i).mutable_grad(); gradient.defined()) gradient.mul_(factor);
  if (has_accumulated(i)) view_of(accumulated_, i).mul_(factor);
}

void FlatParameterGroup::renew_gradients() {
  if (!gradients_.defined()) return;
  std::size_t own = 1;
  for (std::size_t i = 0; i < size(); ++i) own += grad_is_view(i) ? 1 : 0;
  if (gradients_.storage().use_count() > own) gradients_.reset();
}

NamedTensors FlatParameterGroup::whole(const comm::Group& group) const {
  const at::NoGradGuard no_grad;
  at::Tensor flat = shard_;
  if (layout_.shards() > 1) {
    flat = at::empty({layout_.size()}, shard_.options());
    comm::with_purpose(
        [&] { return text("in the all-gather of the parameters ", describe_names()); },
        [&] { group.all_gather(flat, shard_).wait(); });
  }
  flat = flat.to(at::kCPU);
  NamedTensors tensors;
  for (std::size_t i = 0; i < size(); ++i) tensors.emplace_back(name(i), view_of(flat, i).clone());
  return tensors;
}

void FlatParameterGroup::set_shard(const std::vector<at::Tensor>& whole) {
  const at::NoGradGuard no_grad;
  at::Tensor flat = at::zeros({layout_.size()}, at::TensorOptions().dtype(dtype_));
  for (std::size_t i = 0; i < size(); ++i) view_of(flat, i).copy_(whole[i]);
  shard_.copy_(own_shard(flat));
  untouched_ = version_of_parameters();
}

void FlatParameterGroup::note_own_gradients() {
  if (level_ == ShardLevel::None) return;
  has_own_gradient_.assign(size(), false);
  for (std::size_t i = 0; i < size(); ++i) {
    if (!parameter(i).grad().defined() && !has_accumulated(i)) continue;
    has_own_gradient_[i] = true;
    at::Tensor& gradient = shards_[i].mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(shards_[i].detach());
  }
}

void FlatParameterGroup::drop_zeroed() {
  if (level_ == ShardLevel::None) {
    for (std::size_t i = 0; i < is_accumulated_.size(); ++i)
      is_accumulated_[i] = is_accumulated_[i] && parameter(i).grad().defined();
    return;
  }
  for (std::size_t i = 0; i < has_own_gradient_.size(); ++i) {
    if (!has_own_gradient_[i] || shards_[i].grad().defined()) continue;
    parameter(i).mutable_grad().reset();
    if (has_accumulated(i)) is_accumulated_[i] = false;
    has_own_gradient_[i] = false;
  }
}

void FlatParameterGroup::keep_shard_gradients() {
  if (!gradients_hold_shards_) return;
  gradients_hold_shards_ = false;
  for (const at::Tensor& shard : shards_)
    if (shard.grad().defined()) shard.mutable_grad() = shard.grad().clone();
}

at::Tensor FlatParameterGroup::keep_own_shard() {
  const at::NoGradGuard no_grad;
  const at::Tensor own = own_shard(gradients());
  if (level_ == ShardLevel::OptimizerState) return own;
  at::Tensor shard = own.clone();
  drop_gradients();
  return shard;
}

at::Tensor FlatParameterGroup::put_shard(const at::Tensor& reduced) {
  const at::NoGradGuard no_grad;
  const at::Tensor place = own_shard(gradients());
  return place.data_ptr() == reduced.data_ptr() ? reduced : place.copy_(reduced);
}

void FlatParameterGroup::add_to_shards(const at::Tensor& reduced, const std::vector<bool>& used,
                                       double factor) {
  const at::NoGradGuard no_grad;
  at::Tensor shard = reduced.to(shard_.options());
  if (factor != 1) shard.mul_(factor);
  if (level_ == ShardLevel::OptimizerState && gradients_.options().type_equal(shard_.options())) {
    // The whole gradients stay in memory, and the shards' gradients are a part of them.
    shard = put_shard(shard);
    gradients_hold_shards_ = true;
  }
  for (std::size_t i = 0; i < size(); ++i) {
    if (!used[i]) continue;
    const FlatLayout::Slice slice = layout_.slice(i, shard_index_);
    const at::Tensor added = shard.narrow(0, slice.offset, slice.count);
    at::Tensor& gradient = shards_[i].mutable_grad();
    if (gradient.defined()) {
      gradient.add_(added);
    } else {
      gradient =
          added.variable_data();  // not a view for autograd: zero_grad() may detach it in place
    }
  }
}

}  // namespace trestle::sharding
