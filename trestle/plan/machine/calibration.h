#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/plan/machine/figure.h"

// The tables and figures that `trestle calibrate` adds to a machine file.
//
//   const plan::Machine machine = plan::read_machine("mine.toml");
//   const auto seconds = plan::message_seconds(
//       machine.messages, {.kind = plan::Exchange::AllReduce, .over = "gloo",
//                           .ranks = 4, .bytes = 1e6});
namespace trestle::plan {

// The machine and the versions with which a file was measured. Another machine refuses it.
struct MeasuredOn {
  std::string date = {};                    // "2026-01-31", UTC
  std::string cpu = {};                     // the processor's name
  int cores = 1;                            // that the measuring processes could use together
  double memory = 0;                        // bytes of the machine
  std::string gpu = {};                     // "2 x NVIDIA H100 80GB HBM3"; empty = none
  std::string trestle = {}, libtorch = {};  // versions
  std::string devices = {};                 // that were measured: "cpu, 1 thread per operator"
};

// Products of a matrix of rows x inner with one of inner x columns.
enum class ProductShape {
  Square,  // rows = inner = columns
  Tall,    // rows = 16 x inner = 16 x columns: many tokens through one layer
  Thin,    // rows = columns = 16 x inner: the scores of attention
};

std::string_view to_string(ProductShape shape);

struct ProductTable {
  ProductShape shape = ProductShape::Square;
  std::string type = {};  // of the numbers: "fp32", "bf16", "int8"
  Origin origin = Origin::Assumed;
  std::string from = {};
  std::vector<double> sizes = {};    // rows, in ascending order
  std::vector<double> seconds = {};  // one for each size
  std::vector<double> spread = {};   // Figure::spread, one for each size
};

// Floating-point operations of a product with this number of rows.
double flops_of_product(ProductShape shape, double rows);

// Collectives, and a message from one rank to another.
enum class Exchange { AllReduce, AllGather, ReduceScatter, Send };

std::string_view to_string(Exchange exchange);

struct MessageTable {
  Exchange kind = Exchange::AllReduce;
  std::string over = {};  // "threads", "gloo" (processes) or "nccl"
  Reach reach = Reach::Inside;
  int ranks = 2;  // in the group; between nodes each is on a node of its own
  Origin origin = Origin::Assumed;
  std::string from = {};
  std::vector<double> bytes = {};  // of the whole tensor, in ascending order
  std::vector<double> seconds = {};
  std::vector<double> spread = {};
};

enum class CopyPath { OnDevice, BetweenDevices, ToHost, FromHost };

std::string_view to_string(CopyPath path);

struct CopyTable {
  CopyPath path = CopyPath::OnDevice;
  Origin origin = Origin::Assumed;
  std::string from = {};
  std::vector<double> bytes = {};
  std::vector<double> seconds = {};
  std::vector<double> spread = {};
};

// An optimizer's step.
struct OptimizerTime {
  std::string name = {};    // "sgd", "sgd_momentum", "adam", "adamw", "rmsprop"
  Figure seconds_per_byte;  // of the parameters that it steps
};

struct FixedCosts {
  std::optional<Figure> kernel_start = {};    // seconds of an operator on one number
  std::optional<Figure> process_memory = {};  // bytes of a process that holds no tensor
  std::optional<Figure> context_memory = {};  // bytes of a device that holds no tensor
};

struct MessageQuery {
  Exchange kind = Exchange::AllReduce;
  std::string over = {};
  Reach reach = Reach::Inside;
  int ranks = 2;
  double bytes = 0;
};

// The time in the tables of this kind, transport and reach; nothing if there is none. Linear
// between sizes; below the smallest size its time, above the largest in proportion. Linear between
// numbers of ranks; a group below the smallest takes that one's time, and one above the largest
// takes time in proportion to the number of the other ranks.
std::optional<double> message_seconds(const std::vector<MessageTable>& tables,
                                      const MessageQuery& query);

// The time at `size` among ascending sizes, as message_seconds() takes it.
double time_at(const std::vector<double>& sizes, const std::vector<double>& seconds, double size);

// Whether a plan may use the figures of another machine.
enum class OtherMachine { Refuse, Allow };

// Throws UsageError with every value that differs, if `file` was measured on another machine than
// `here` or with another version. A file of a later day than today is refused also where another
// machine is allowed. `measured` without a value is accepted: a profile that nothing here measured.
void check_measured_on(const std::optional<MeasuredOn>& measured, const MeasuredOn& here,
                       const std::string& file, OtherMachine other = OtherMachine::Refuse);

// The differences that check_measured_on() would name: "cores: 8 there, 2 here".
std::vector<std::string> differences_of(const MeasuredOn& measured, const MeasuredOn& here);

}  // namespace trestle::plan
