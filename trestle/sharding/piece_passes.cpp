// Backwards of a batch's pieces (ShardOptions::reproducible): each puts its gradients into a buffer of its own, and the last
// one's are reduced, with those before.
#include <ATen/core/grad_mode.h>

#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/sharding/gradient_reducer.h"
#include "trestle/sharding/reproducible.h"

namespace trestle::sharding {

// In a backward whose first gradient comes before any of the model's outputs was seen. A piece's is not to be taken for one
// that was there before.
void GradientReducer::arm_late(std::size_t group, std::size_t index) {
  if (!pieces_) return prepare_for_backward(/*after_gradients=*/true);
  if (groups_[group]->grad_is_view(index)) {
    throw StateError(text("parameter '", groups_[group]->name(index),
                          "' got its gradient before any output of the model did, and still has "
                          "that of the step before"),
                     {.hint = "Call zero_grad() before the first piece's backward."});
  }
  at::Tensor& gradient = groups_[group]->parameter(index).mutable_grad();
  at::Tensor fresh = std::exchange(gradient, at::Tensor());
  prepare_for_backward(/*after_gradients=*/true);
  gradient = std::move(fresh);
}

void GradientReducer::begin_piece() {
  if (!pieces_ || !pass_->sync) return;
  check_threads(options_.reproducible);
  // What is in grad() counts once, not as a part of each piece's.
  if (pieces_->done() == 0) set_aside();
  pass_->more_pieces = !pieces_->is_last();
}

// Whether the group's gradients() are those of all of this rank's pieces, to be reduced.
bool GradientReducer::complete_pieces(std::size_t group) {
  if (!pieces_) return true;
  FlatParameterGroup& flat = *groups_[group];
  const at::Tensor own = flat.gradients();
  flat.drop_gradients();
  flat.set_gradients(pieces_->add(group, own));
  return !pass_->more_pieces;
}

void GradientReducer::end_piece() {
  if (!pieces_) return;
  for (const std::size_t g : trained_)
    pass_->groups[g].fired = pieces_->note_used(g, pass_->groups[g].fired);
  pieces_->end_piece();
}

// Where a backward threw: some of its groups may have their sums already.
void GradientReducer::give_up_pieces() {
  if (!pieces_) return;
  pieces_->begin_anew();
  put_back();
}

void GradientReducer::begin_step_anew() {
  const std::lock_guard lock(mutex_);
  has_unreduced_ = false;
  if (!pieces_ || pieces_->done() == 0) return;
  pieces_->begin_anew();
  aside_.clear();
}

}  // namespace trestle::sharding
