#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

// The pickles of DeepSpeed's folders, as version 0.19.8 loads them. Torch-free. Internal to
// trestle/checkpoint.
namespace trestle::checkpoint {

// A tensor to be stored: number i of a list is the record "data/i" of its archive.
struct PickledEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
};

// The training as DeepSpeed counts it.
struct DeepspeedProgress {
  std::int64_t steps = 0, skipped_steps = 0;
  std::int64_t samples = 0;
  // Calls of the scheduler's step(), less one; without a value there is no scheduler.
  std::optional<std::int64_t> scheduler_iteration = {};
  std::map<std::string, double> client_state = {};
};

// One entry of an optimizer's param_groups: "lr", "betas", ...
using OptimizerValue = std::variant<bool, double, std::pair<double, double>>;
using OptimizerValues = std::map<std::string, OptimizerValue>;

// A parameter of the model in Python. A frozen one is not the optimizer's.
struct DeepspeedParameter {
  std::string name;
  bool frozen = false;
  std::string same_as = {};  // the earlier name of the same parameter
};

// One group of the optimizer's parameters.
struct DeepspeedGroup {
  OptimizerValues values = {};
  // In the group's order. A single group may name none: it has all that are not frozen.
  std::vector<std::string> parameters = {};
};

struct DeepspeedPickle {
  int stage = 1, ranks = 1;
  // In the order of the model in Python, which is the order of the flat buffers.
  std::vector<DeepspeedParameter> parameters = {};
  bool bf16 = false;
  double clip_grad_norm = 0;
  std::int64_t train_batch = 0;
  std::vector<DeepspeedGroup> groups = {};
  // Stage 3 divides a group into sub-groups with at least this number of a rank's elements.
  std::int64_t sub_group = 1'000'000'000;
  DeepspeedProgress progress = {};
};

// The contents of a rank's file of weights. Its records are in the order of these lists.
struct DeepspeedModel {
  int rank = 0;
  struct Parameter {
    PickledEntry entry;               // of `module`: at stage 3 it is empty
    std::vector<std::int64_t> shape;  // of the whole parameter
    bool stepped = true;              // by the optimizer; otherwise it is frozen or has no element
  };
  // Another name of a parameter, which has its record.
  struct Alias {
    std::string name;
    std::size_t parameter = 0;  // its number
  };
  std::vector<Parameter> parameters = {};  // in the model's order
  std::vector<Alias> aliases = {};
  // The numbers of the parameters in each group of the optimizer, at stage 3 in each sub-group.
  std::vector<std::vector<std::size_t>> groups = {};
  std::vector<PickledEntry> buffers = {};
  std::vector<PickledEntry> masters = {};  // stage 0 with bf16: the fp32 weights, group by group
  // Stage 0: the optimizer's "<parameter>.<field>", group by group.
  std::vector<PickledEntry> state = {};
  // Stage 3: this rank's shards of the parameters that are not stepped.
  std::vector<PickledEntry> shards = {};
};

std::string format_deepspeed_model(const DeepspeedPickle& about, const DeepspeedModel& model);

// A rank's flat buffers of a group or sub-group of parameters. Entry 0 has the weights, and the
// remaining ones are fields of the optimizer's state, by name. `padding` is the number of elements
// that the weights lack.
struct DeepspeedFlats {
  std::size_t group = 0;  // its number in the optimizer
  std::vector<PickledEntry> entries = {};
  std::int64_t padding = 0;
};

// A rank's file of the optimizer at stages 1 to 3. Its records are the entries of all groups.
std::string format_deepspeed_optimizer(const DeepspeedPickle& about,
                                       const std::vector<DeepspeedFlats>& flats);

}  // namespace trestle::checkpoint
