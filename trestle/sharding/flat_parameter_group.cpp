#include "trestle/sharding/flat_parameter_group.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/sharding/content_checksum.h"
#include "trestle/sharding/parameter_storage.h"

namespace trestle::sharding {
namespace {

constexpr const char* freed_message =
    "this parameter is divided over ranks (ShardLevel::Parameters) and not gathered here: call the "
    "model through Sharded::forward(), or Sharded::unshard() first";
constexpr const char* gone_message =
    "this parameter was divided over ranks by a trestle::Sharded that is gone, and is not whole: "
    "take "
    "Sharded::state() before, or destroy the Sharded while an unshard() lives";

FlatLayout layout_of(const NamedTensors& parameters, int pieces) {
  std::vector<std::int64_t> counts;
  for (const auto& [name, parameter] : parameters) counts.push_back(parameter.numel());
  return {std::move(counts), pieces};
}

// Integers and complex numbers stay what they are, as in torch::nn::Module::to().
at::ScalarType cast(at::ScalarType own, std::optional<at::ScalarType> wanted) {
  return wanted && at::isFloatingType(own) ? *wanted : own;
}

}  // namespace

FlatParameterGroup::FlatParameterGroup(NamedTensors parameters, bool trained, int pieces, int piece,
                                       const ShardOptions& options)
    : parameters_(std::move(parameters)),
      layout_(layout_of(parameters_, pieces)),
      piece_(piece),
      level_(options.level),
      trained_(trained),
      dtype_(parameters_.at(0).second.scalar_type()),
      compute_dtype_(cast(dtype_, options.precision.parameters)),
      reduce_dtype_(cast(compute_dtype_, options.precision.reduce)),
      shard_on_cpu_(options.shards_on_cpu && !parameters_.at(0).second.is_cpu()) {}

Bytes FlatParameterGroup::bytes() const {
  return layout_.size() * static_cast<Bytes>(c10::elementSize(compute_dtype_));
}

at::Tensor FlatParameterGroup::view_of(const at::Tensor& flat, std::size_t i) const {
  const at::Tensor& like = parameter(i);
  // One with gaps, as a part of a larger tensor, would reach beyond its place.
  if (!like.is_non_overlapping_and_dense())
    return flat.narrow(0, layout_.offset(i), layout_.count(i)).view(like.sizes());
  return flat.as_strided(like.sizes(), like.strides(), layout_.offset(i));
}

at::Tensor FlatParameterGroup::own_piece(const at::Tensor& flat) const {
  return flat.narrow(0, piece_ * layout_.piece_size(), layout_.piece_size());
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
    parameter(i)
        .mutable_grad()
        .reset();  // of before: the optimizer, which has the shards, would not zero it
  }
  shard_ = own_piece(own);
  if (separate_shard_) shard_ = shard_on_cpu_ ? shard_.to(at::kCPU) : shard_.clone();
  for (std::size_t i = 0; i < size(); ++i) {
    const FlatLayout::Part part = layout_.part(i, piece_);
    // A tensor object of its own on the shard's memory, with a version counter of its own.
    at::Tensor shard = shard_.narrow(0, part.offset, part.count).variable_data();
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
  const at::Tensor own = own_piece(flat_);
  const at::Tensor changed = own != shard_.to(own.options());  // others keep their precision
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
  tell_graphs();
  known_version_ = version;
}

void FlatParameterGroup::note_step() {
  note_writes();
  const bool stays_whole = level_ == ShardLevel::OptimizerState || level_ == ShardLevel::Gradients;
  if (stays_whole && stale()) tell_graphs();
}

void FlatParameterGroup::tell_graphs() {
  for (const auto& [name, tensor] : parameters_) tensor.unsafeGetTensorImpl()->bump_version();
  untouched_ += size();
}

void FlatParameterGroup::gather(const comm::Group& group) {
  if (gathered_) return;
  note_writes();
  gathered_checksum_ = content_checksum(shard_);
  untouched_ = version_of_parameters();
  if (!separate_shard_ && layout_.pieces() == 1) {
    gathered_ = true;
    return;
  }
  if (level_ == ShardLevel::Parameters) make_storage(flat_);
  gathered_ = true;
  ++gathers_;
  if (part_.defined()) {
    ++gathers_among_few_;
    gathering_ = few_.all_gather(flat_, part_);
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

void FlatParameterGroup::wait_gathered() {
  gathering_.wait();
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

void FlatParameterGroup::release_to(const comm::Group& few) {
  if (!gathered_) return;
  wait_gathered();
  const at::NoGradGuard no_grad;
  const std::int64_t count = layout_.size() / few.size();
  if (!part_.defined()) part_ = flat_.narrow(0, few.rank() * count, count).clone();
  few_ = few;
  release();
}

void FlatParameterGroup::forget_gathered() {
  take_back();
  gathered_ = false;
}

void FlatParameterGroup::abandon(bool current) {
  if (!flat_.defined() || (gathered_ && current && !stale())) return;
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

void FlatParameterGroup::add_to_kept(std::size_t i) {
  at::Tensor& gradient = parameter(i).mutable_grad();
  if (!gradient.defined() || c10::elementSize(reduce_dtype_) <= c10::elementSize(compute_dtype_))
    return;
  const at::NoGradGuard no_grad;
  if (!kept_.defined()) {
    kept_ = at::empty({layout_.size()},
                      parameter(i).options().dtype(reduce_dtype_).requires_grad(false));
    is_kept_.assign(size(), false);
  }
  at::Tensor sum = view_of(kept_, i);
  is_kept_[i] ? sum.add_(gradient) : sum.copy_(gradient);
  is_kept_[i] = true;
  // At level None the optimizer has the parameters: by a gradient's absence drop_zeroed() sees its zero_grad().
  level_ == ShardLevel::None ? static_cast<void>(gradient.zero_()) : gradient.reset();
}

at::Tensor FlatParameterGroup::take_kept(std::size_t i) {
  is_kept_[i] = false;
  return view_of(kept_, i);
}

void FlatParameterGroup::drop_kept() {
  kept_.reset();
  is_kept_.clear();
}

void FlatParameterGroup::scale_own_gradient(std::size_t i, double factor) {
  const at::NoGradGuard no_grad;
  if (at::Tensor& gradient = parameter(i).mutable_grad(); gradient.defined()) gradient.mul_(factor);
  if (has_kept(i)) view_of(kept_, i).mul_(factor);
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
  if (layout_.pieces() > 1) {
    flat = at::empty({layout_.size()}, shard_.options());
    group.all_gather(flat, shard_).wait();
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
  shard_.copy_(own_piece(flat));
  untouched_ = version_of_parameters();
}

void FlatParameterGroup::note_own_gradients() {
  if (level_ == ShardLevel::None) return;
  has_own_gradient_.assign(size(), false);
  for (std::size_t i = 0; i < size(); ++i) {
    if (!parameter(i).grad().defined() && !has_kept(i)) continue;
    has_own_gradient_[i] = true;
    at::Tensor& gradient = shards_[i].mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(shards_[i].detach());
  }
}

void FlatParameterGroup::drop_zeroed() {
  if (level_ == ShardLevel::None) {
    for (std::size_t i = 0; i < is_kept_.size(); ++i)
      is_kept_[i] = is_kept_[i] && parameter(i).grad().defined();
    return;
  }
  for (std::size_t i = 0; i < has_own_gradient_.size(); ++i) {
    if (!has_own_gradient_[i] || shards_[i].grad().defined()) continue;
    parameter(i).mutable_grad().reset();
    if (has_kept(i)) is_kept_[i] = false;
    has_own_gradient_[i] = false;
  }
}

void FlatParameterGroup::keep_shard_gradients() {
  if (!gradients_hold_shards_) return;
  gradients_hold_shards_ = false;
  for (const at::Tensor& shard : shards_)
    if (shard.grad().defined()) shard.mutable_grad() = shard.grad().clone();
}

at::Tensor FlatParameterGroup::put_piece(const at::Tensor& reduced) {
  const at::NoGradGuard no_grad;
  const at::Tensor place = own_piece(gradients());
  return place.data_ptr() == reduced.data_ptr() ? reduced : place.copy_(reduced);
}

void FlatParameterGroup::add_to_shards(const at::Tensor& reduced, const std::vector<bool>& used,
                                       double factor) {
  const at::NoGradGuard no_grad;
  at::Tensor piece = reduced.to(shard_.options());
  if (factor != 1) piece.mul_(factor);
  if (level_ == ShardLevel::OptimizerState && gradients_.options().type_equal(shard_.options())) {
    // The whole gradients stay in any case: the shards' are a part of them.
    piece = put_piece(piece);
    gradients_hold_shards_ = true;
  }
  for (std::size_t i = 0; i < size(); ++i) {
    if (!used[i]) continue;
    const FlatLayout::Part part = layout_.part(i, piece_);
    const at::Tensor added = piece.narrow(0, part.offset, part.count);
    at::Tensor& gradient = shards_[i].mutable_grad();
    if (gradient.defined()) {
      gradient.add_(added);
    } else {
      gradient = added.variable_data();  // no view to autograd: zero_grad() may detach it in place
    }
  }
}

}  // namespace trestle::sharding
