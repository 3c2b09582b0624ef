#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "trestle/base/error.h"
#include "trestle/launch/rank_environment.h"

namespace trestle::launch {

using FakeEnvironment = std::map<std::string, std::string>;

// `environment` with some variables changed; "-" removes one.
inline FakeEnvironment with(FakeEnvironment environment, const FakeEnvironment& changes) {
  for (const auto& [name, value] : changes) {
    if (value == "-")
      environment.erase(name);
    else
      environment[name] = value;
  }
  return environment;
}

inline RankEnvironment read(const FakeEnvironment& environment) {
  return read_rank_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

// The UsageError's message; fails the test if there is none.
inline std::string refusal(const FakeEnvironment& environment) {
  try {
    const RankEnvironment result = read(environment);
    ADD_FAILURE() << "taken: " << result.source << " rank " << result.rank << " of "
                  << result.world_size;
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace trestle::launch
