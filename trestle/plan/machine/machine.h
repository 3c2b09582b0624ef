#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/plan/machine/calibration.h"
#include "trestle/plan/machine/figure.h"

// The figures of a machine that trestle plan computes with. A profile is a TOML file: machines/ has
// those that are installed.
//
//   const plan::Machine machine = plan::read_machine("a100-8-per-node");
//   const double seconds = plan::all_reduce_seconds(machine, 64e6, {.ranks = 8, .per_node = 8});
namespace trestle::plan {

// The time of one all-reduce in a group of `ranks` ranks of one node, for ascending sizes.
struct CollectiveTable {
  int ranks = 2;
  Origin origin = Origin::Assumed;
  std::string from = {};
  std::vector<double> bytes = {};    // of the tensor that each rank has
  std::vector<double> seconds = {};  // one for each size
};

// The constants of a transformer's time (gpt/layer_times.h). The fit of gpt/fit_times.h finds the
// seven from matrix_efficiency to step_seconds together: they are not physical one by one.
struct TransformerTimes {
  Figure matrix_efficiency;  // the share of the peak that a large product reaches
  Figure product_cost;       // FLOPs that each product costs beyond its own
  Figure score_passes;       // passes of a layer's step over its attention scores
  Figure activation_passes;  // passes of a layer's step over its other activations
  Figure layer_floor;        // seconds to start a layer's kernels, forward and backward
  Figure head_efficiency;    // the share of the peak that the head's product reaches
  Figure step_seconds;       // of each step, whatever its size
  Figure tensor_floor;       // seconds more of layer_floor on a layer that ranks split
  Figure spread;             // nine of ten known steps differ by at most this share
  Figure optimizer_bytes;    // that a step of Adam reads and writes for each parameter
};

// The known time of one block of a GPT, used instead of the formula's: its compute in forward and
// backward, without messages and without recomputation.
struct KnownBlock {
  std::int64_t hidden = 1, heads = 1, sequence = 1;
  int micro_batch = 1;
  int tensor = 1;
  double seconds = 0;
  Origin origin = Origin::Assumed;
  std::string from = {};
};

struct LinkFigures {
  Figure bandwidth;  // bytes per second
  Figure latency;    // seconds
};

// A node's host, which holds what devices offload (Strategy::offload).
struct HostFigures {
  Figure bandwidth;         // bytes per second between a device and the host, each way
  Figure memory_bandwidth;  // of the host's memory, which an update uses; the devices share it
  Figure memory;            // bytes of the host, for all devices of a node
};

struct Machine {
  std::string name = {};
  std::string about = {};  // one line
  int devices_per_node = 1;
  Figure memory;    // bytes of a device
  Figure reserved;  // bytes of it for the context, communicators and workspaces
  Figure peak;      // FLOP/s of products in 16 bits
  std::optional<Figure> peak_fp32 = {};  // FLOP/s of products in fp32
  Figure memory_bandwidth;               // bytes per second of a device's memory
  TransformerTimes transformer = {};
  LinkFigures inside;                            // a message between two devices of a node
  LinkFigures between;                           // all devices of a node together, to other nodes
  std::vector<CollectiveTable> all_reduce = {};  // in order of ranks
  std::vector<KnownBlock> blocks = {};
  std::optional<HostFigures> host = {};
  // The shares of the messages of tensor and of data ranks that run behind computation, as the
  // program that runs on the machine does it. Not given: 0.
  std::optional<Figure> hidden_tensor = {}, hidden_data = {};
  std::optional<Figure> price_per_hour = {};  // of a device, in any currency
  // The measurements of `trestle calibrate`, with the machine on which it ran. A shipped profile
  // has none.
  std::optional<MeasuredOn> measured_on = {};
  std::vector<OptimizerTime> optimizers = {};
  FixedCosts fixed = {};
  std::vector<ProductTable> products = {};
  std::vector<MessageTable> messages = {};
  std::vector<CopyTable> copies = {};
};

// Throws UsageError with every problem, each with the file's name, its line and its key.
Machine parse_machine(std::string_view toml_text, const std::string& file);

// The file's text again. parse_machine() of it returns an equal machine.
std::string to_toml(const Machine& machine);

// Reads a file, or an installed profile by its name. Throws UsageError if there is none, and what
// parse_machine() throws.
Machine read_machine(const std::filesystem::path& name);

// The folders in which read_machine() searches for a name: the working folder, machines, and
// <prefix>/share/trestle/machines for <prefix>/bin/trestle.
std::vector<std::filesystem::path> machine_folders();

// ---- collectives and messages ----

// The nodes of a group's ranks.
struct GroupPlace {
  int ranks = 1;
  int per_node = 1;  // of the group's ranks, on each of its nodes
  int sharing = 1;   // groups that use a node's link to other nodes at the same time
};

// Every rank has `bytes`. Within a node: the table of the group's size, linear between its sizes;
// below the smallest size its time, above the largest in proportion. A group without a table takes
// that of the next larger one, or a ring over `inside`. Over nodes: the all-reduce of the ranks of
// a node, and a ring over the nodes' links, of which the group has a share.
double all_reduce_seconds(const Machine& machine, double bytes, const GroupPlace& place);

// An all-gather or a reduce-scatter of a tensor of `bytes`: half an all-reduce.
double gather_seconds(const Machine& machine, double bytes, const GroupPlace& place);

// A message of `bytes` between two devices. Between nodes, the senders of a node share its link.
struct MessagePath {
  Reach reach = Reach::Inside;
  int senders = 1;  // devices of a node that send to other nodes at the same time
};
double message_seconds(const Machine& machine, double bytes, const MessagePath& path);

}  // namespace trestle::plan
