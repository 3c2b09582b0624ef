#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trestle/plan/machine/machine.h"

// `trestle calibrate`. Includes no torch. Inside of the trainer. Not installed.
namespace trestle {
class World;
}  // namespace trestle

namespace trestle::train {

struct CalibrateOptions {
  std::string name = "machine";
  std::string device = "cpu";  // "cpu", "virtual" or "cuda:0"
  // Sizes of the groups on one machine whose messages are measured; empty = none. In a world of
  // several ranks, those that fit on the first rank's machine.
  std::vector<int> ranks = {};
  bool threads = true;    // measure messages between ranks that are threads
  bool processes = true;  // the same of the world's ranks
  // The world's backend that the caller wants, "gloo" or "nccl"; empty = any.
  std::string backend = {};
  bool quick = false;
  // Gets what is measured next, on the first rank.
  std::function<void(const std::string& what, int done, int all)> progress = {};
};

struct Calibration {
  plan::Machine machine;
  std::vector<std::string> notes;  // what this machine does not have
  double seconds = 0;
};

// Measures this machine. All ranks of the world call it, with equal options; the result is the
// first rank's, and that of other ranks is empty. Without a world it measures one process. Throws
// UsageError for a device that does not exist and for groups that are larger than the machine's
// ranks.
Calibration calibrate(const World* world, const CalibrateOptions& options);

// The sizes of groups that are measured unless the caller sets them: powers of two up to the
// machine's ranks, and that number.
std::vector<int> default_group_sizes(int ranks);

// How many devices of this kind ranks can have here: for a CPU and virtual devices at least 4.
int ranks_of_device(const std::string& device);

}  // namespace trestle::train
