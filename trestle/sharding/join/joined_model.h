#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/sharding/join/join_protocol.h"
#include "trestle/sharding/reduce/gradient_reducer.h"

namespace trestle::sharding {

// The state of one model inside join().
class JoinedModel {
 public:
  // `stepped`: the tensors whose gradients an optimizer reads. It outlives this object.
  explicit JoinedModel(const NamedTensors& stepped) : stepped_(stepped) {}

  void begin(const std::shared_ptr<JoinProtocol>& protocol, int number);
  void end();
  bool is_active() const { return protocol_ != nullptr; }
  // The weight of backwards without one: 1 where sums are divided by the number of active ranks.
  std::optional<double> default_weight() const { return default_weight_; }
  // The rank whose buffers a forward begins with.
  int buffers_from() const { return buffers_from_; }
  void update_buffers_from() { buffers_from_ = protocol_->first_active_rank(); }
  int first_active_rank() const { return protocol_->first_active_rank(); }

  // Outside of join() these do nothing.
  void note_gradients();     // as the last backward left them
  void compare_gradients();  // finds which gradients of earlier backwards were changed since
  void announce_forward();
  void announce_backward(const GradientReducer::Announcement& announcement);

  // A shadowing rank clears and zeroes the gradients that the active ranks did.
  void shadow_gradients(const JoinProtocol::Message& message);

 private:
  using Earlier = JoinProtocol::Earlier;
  void announce(JoinProtocol::Message message);
  std::vector<Earlier> earlier_gradients() const;

  const NamedTensors& stepped_;
  std::shared_ptr<JoinProtocol> protocol_;
  int number_ = 0;  // of this model in the join
  std::optional<double> default_weight_;
  int buffers_from_ = 0;
  std::vector<Earlier> earlier_;  // at the last compare_gradients()
  // (tensor, version) of each gradient at the last note_gradients()
  std::vector<std::pair<const void*, std::uint32_t>> noted_;
};

}  // namespace trestle::sharding
