#pragma once

#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include "trestle/comm/threads/spawn.h"
#include "trestle/pipeline/pipeline.h"

// Pipelines over thread ranks.
namespace trestle::support {

inline bool is_last(const World& world) { return world.rank() + 1 == world.size(); }

inline PipelineOptions over(const World& world, PipelineOptions options = {}) {
  options.group = world.group();
  options.deadline = std::chrono::seconds(20);
  return options;
}

// The message of each rank's exception, "" for none.
template <class Call>
std::vector<std::string> messages_of_ranks(
    int ranks, const Call& call, std::chrono::milliseconds deadline = std::chrono::seconds(20)) {
  return spawn(ranks,
               [&](World& world) -> std::string {
                 try {
                   call(world);
                   return "";
                 } catch (const std::exception& error) {
                   return error.what();
                 }
               },
               {.deadline = deadline});
}

}  // namespace trestle::support
