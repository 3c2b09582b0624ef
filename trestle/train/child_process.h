#pragma once

#include <functional>
#include <optional>
#include <string>

namespace trestle::train {

// What became of it; `error` is empty where all is well.
struct ChildResult {
  std::string output;
  std::string error;
};

// Runs `work` in a process of its own, a copy of this one, and returns what it returned, or the
// message of what it threw, or how it ended ("ended by signal 9 (Killed)"). What it prints is lost.
// Asks `should_stop` several times a second; true ends the process and returns nothing. The process
// ends with this one, however this one ends.
//
// A copy has only the calling thread: call it before libtorch has started any of its own.
std::optional<ChildResult> in_child_process(const std::function<std::string()>& work,
                                            const std::function<bool()>& should_stop = {});

}  // namespace trestle::train
