#pragma once

#include <functional>
#include <optional>
#include <string>

namespace trestle::train {

// The result of a child process; `error` is empty on success.
struct ChildResult {
  std::string output;
  std::string error;
};

// Runs `work` in a child process, a copy of this one, and returns its result, or the message of
// what it threw, or how the process ended ("ended by signal 9 (Killed)"). Its output is discarded.
// Calls `should_stop` several times a second; true ends the child and returns nothing. The child
// ends with this process, however it ends.
//
// The child has only the calling thread: call this before libtorch has started any thread.
std::optional<ChildResult> in_child_process(const std::function<std::string()>& work,
                                            const std::function<bool()>& should_stop = {});

}  // namespace trestle::train
