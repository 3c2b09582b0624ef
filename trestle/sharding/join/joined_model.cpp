#include "trestle/sharding/join/joined_model.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace trestle::sharding {
namespace {

using Step = JoinProtocol::Step;

// Changes when the gradient is replaced, and when it is zeroed in place.
std::pair<const void*, std::uint32_t> gradient_version(const at::Tensor& gradient) {
  if (!gradient.defined()) return {};
  return {gradient.unsafeGetTensorImpl(), gradient._version()};
}

}  // namespace

void JoinedModel::begin(const std::shared_ptr<JoinProtocol>& protocol, int number) {
  protocol_ = protocol;
  number_ = number;
  note_gradients();
  if (protocol->options().divide == JoinOptions::Divide::RanksWithBatches) default_weight_ = 1;
}

void JoinedModel::end() {
  protocol_.reset();
  default_weight_.reset();
  buffers_from_ = 0;
  noted_.clear();
}

// Zeros do not prove that a gradient was zeroed: this rank's shard of it may be zero, or empty,
// where a shadowing rank's is not. So an unchanged gradient counts as kept.
std::vector<JoinProtocol::Earlier> JoinedModel::earlier_gradients() const {
  std::vector<Earlier> earlier;
  for (std::size_t i = 0; i < stepped_.size(); ++i) {
    const at::Tensor gradient = stepped_[i].second.grad();
    const bool unchanged = i < noted_.size() && noted_[i] == gradient_version(gradient);
    if (!gradient.defined())
      earlier.push_back(Earlier::None);
    else
      earlier.push_back(unchanged || gradient.ne(0).any().item<bool>() ? Earlier::Kept
                                                                       : Earlier::Zeroed);
  }
  return earlier;
}

void JoinedModel::note_gradients() {
  noted_.clear();
  if (!protocol_) return;
  for (const auto& [name, tensor] : stepped_) noted_.push_back(gradient_version(tensor.grad()));
}

void JoinedModel::compare_gradients() {
  if (protocol_) earlier_ = earlier_gradients();
}

void JoinedModel::announce_forward() {
  if (!protocol_ || protocol_->shadows()) return;
  compare_gradients();
  announce({.step = at::GradMode::is_enabled() ? Step::TrainingForward : Step::Forward});
}

void JoinedModel::announce_backward(const GradientReducer::Announcement& announcement) {
  if (!announcement.after_gradients) compare_gradients();
  announce({.step = announcement.sync ? Step::Backward : Step::UnreducedBackward,
            .weighted = announcement.sync && announcement.weighted,
            .earlier = earlier_});
}

void JoinedModel::announce(JoinProtocol::Message message) {
  if (!protocol_ || protocol_->shadows()) return;
  message.model = number_;
  protocol_->exchange(message);
  buffers_from_ = protocol_->first_active_rank();
}

void JoinedModel::shadow_gradients(const JoinProtocol::Message& message) {
  for (std::size_t i = 0; i < stepped_.size(); ++i) {
    const at::Tensor& parameter = stepped_[i].second;
    if (message.earlier.at(i) == Earlier::None) parameter.mutable_grad().reset();
    if (message.earlier.at(i) == Earlier::Zeroed)
      parameter.mutable_grad() = at::zeros_like(parameter.detach());
  }
}

}  // namespace trestle::sharding
