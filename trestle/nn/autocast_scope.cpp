#include "trestle/nn/detail/autocast_scope.h"

#include <ATen/autocast_mode.h>

namespace trestle::nn {
namespace {

void apply(const AutocastState& state) {
  for (std::size_t i = 0; i < AutocastState::device_types.size(); ++i) {
    at::autocast::set_autocast_enabled(AutocastState::device_types[i], state.enabled[i]);
    at::autocast::set_autocast_dtype(AutocastState::device_types[i], state.dtype[i]);
  }
  at::autocast::set_autocast_cache_enabled(state.keeps_weights);
}

}  // namespace

AutocastState AutocastState::current() {
  AutocastState state;
  for (std::size_t i = 0; i < device_types.size(); ++i) {
    state.enabled[i] = at::autocast::is_autocast_enabled(device_types[i]);
    state.dtype[i] = at::autocast::get_autocast_dtype(device_types[i]);
  }
  state.keeps_weights = at::autocast::is_autocast_cache_enabled();
  return state;
}

AutocastState AutocastState::off() {
  AutocastState state = current();
  state.enabled = {};
  return state;
}

AutocastScope::AutocastScope(const AutocastState& state)
    : before_(AutocastState::current()), nested_(state.any_enabled()) {
  apply(state);
  if (!nested_) return;
  at::autocast::increment_nesting();
  at::autocast::clear_cache();
}

AutocastScope::~AutocastScope() {
  if (nested_) {
    at::autocast::clear_cache();
    at::autocast::decrement_nesting();
  }
  apply(before_);
}

}  // namespace trestle::nn
