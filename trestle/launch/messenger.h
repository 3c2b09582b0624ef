#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "trestle/launch/launcher.h"

namespace trestle::launch {

// Tells the ranks of other machines what happened on this one, by LaunchOptions::tell_machines.
// Each call runs in a child process, so that the launcher neither waits nor gets threads.
class Messenger {
 public:
  explicit Messenger(const LaunchOptions& options) : options_(options) {}
  // Waits until the last news are told.
  ~Messenger();
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  // Fills in the address. Does nothing on one machine.
  void tell(NewsForMachines news);

 private:
  const LaunchOptions& options_;
  std::vector<pid_t> children_;
};

// The name of this machine.
std::string host_name();

}  // namespace trestle::launch
