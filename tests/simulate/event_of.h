#pragma once

#include <gtest/gtest.h>

#include <string_view>

#include "trestle/schedule/action.h"
#include "trestle/schedule/timeline.h"

namespace trestle::simulate {

// The event of an action such as "0F1". Without one the test fails.
inline schedule::Event event_of(const schedule::Timeline& timeline, std::string_view text) {
  for (const schedule::Event& event : timeline.events) {
    if (event.action == schedule::parse_action(text)) return event;
  }
  ADD_FAILURE() << "no event " << text;
  return {};
}

}  // namespace trestle::simulate
