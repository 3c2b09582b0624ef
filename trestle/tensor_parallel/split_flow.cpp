#include "trestle/tensor_parallel/split_flow.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "trestle/base/text.h"

namespace trestle::tensor_parallel {

namespace {

// How a layer changes the layout of its input.
struct FlowEvent {
  enum class What : std::uint8_t {
    Opens,   // a column layer: whole input, slices as output
    Closes,  // a row layer: slices as input, whole output
    Keeps,   // split channels: slices as input and output
    Mixes,   // a layer of torch without weights that mixes features, or may do so
    Whole,   // any other layer with weights: whole input and output
  };
  What what = What::Whole;
  const ModuleTree* module = nullptr;
};

using What = FlowEvent::What;

constexpr std::string_view of_torch = "torch::nn::";

// "Softmax" for a module of torch that computes; empty for a program's own, also in Functional.
std::string name_of_torch_module(const ModuleTree& module) {
  std::string_view type = module.facts.type;
  if (!type.starts_with(of_torch) || !module.children.empty() || module.runs_in_order) return {};
  type.remove_prefix(of_torch.size());
  if (type.ends_with("Impl")) type.remove_suffix(4);
  if (type == "Functional") return {};
  return std::string(type);
}

bool is_elementwise(std::string_view name) {
  constexpr std::string_view known[] = {
      "CELU", "ELU",      "GELU",     "Hardshrink", "Hardtanh",   "Identity", "LeakyReLU",
      "Mish", "ReLU",     "ReLU6",    "SELU",       "SiLU",       "Sigmoid",  "LogSigmoid",
      "Tanh", "Softplus", "Softsign", "Softshrink", "Tanhshrink", "Threshold"};
  return std::ranges::find(known, name) != std::end(known);
}

bool is_random(std::string_view name) {
  return name.find("Dropout") != std::string_view::npos || name == "RReLU";
}

// Layers that work on each channel of images by itself. Their number of dimensions must be that of
// the convolution: others take the channels for a dimension of space.
bool works_on_channels(std::string_view name, const ModuleFacts& column) {
  if (column.kind != ModuleKind::Convolution) return false;
  constexpr std::string_view of_any_size[] = {"Flatten", "Upsample"};
  if (std::ranges::find(of_any_size, name) != std::end(of_any_size)) return true;
  constexpr std::string_view families[] = {"MaxPool",         "AvgPool",       "AdaptiveMaxPool",
                                           "AdaptiveAvgPool", "LPPool",        "FractionalMaxPool",
                                           "InstanceNorm",    "ZeroPad",       "ConstantPad",
                                           "ReflectionPad",   "ReplicationPad"};
  const std::string_view size = std::string_view(column.type).substr(column.type.size() - 2);
  return name.ends_with(size) &&
         std::ranges::find(families, name.substr(0, name.size() - 2)) != std::end(families);
}
using Events = std::vector<FlowEvent>;
using Modules = std::vector<const ModuleTree*>;

What what_of(Split split) {
  if (split == Split::Columns) return What::Opens;
  if (split == Split::Rows) return What::Closes;
  if (split == Split::Channels) return What::Keeps;
  return What::Whole;
}

class Flow {
 public:
  Flow(const nn::Graph& graph, const std::vector<ModuleTree>& trees)
      : graph_(graph), trees_(trees) {}

  std::vector<std::string> faults() {
    for (std::size_t i = 0; i < trees_.size(); ++i) {
      Modules open = inputs_of(static_cast<int>(i));
      run_in_order(events_of(trees_[i]), Start::Known, &open);
      outputs_.push_back(std::move(open));
    }
    for (const ModuleTree* one : inputs_of(static_cast<int>(trees_.size())))
      add(text("'", one->name,
               "' gives slices that no row layer joins: split a later layer by "
               "rows, or '",
               one->name, "' by columns, gathered"));
    return std::move(faults_);
  }

 private:
  enum class Start : std::uint8_t { Known, Unknown };

  void add(std::string fault) {
    if (std::find(faults_.begin(), faults_.end(), fault) == faults_.end())
      faults_.push_back(std::move(fault));
  }

  // The column layers whose slices a layer gets.
  Modules inputs_of(int layer) const {
    Modules open;
    for (const nn::Edge& edge : graph_.edges) {
      if (edge.to_layer != layer || edge.from_layer == nn::model_input) continue;
      for (const ModuleTree* one : outputs_[static_cast<std::size_t>(edge.from_layer)])
        if (std::find(open.begin(), open.end(), one) == open.end()) open.push_back(one);
    }
    return open;
  }

  Events events_of(const ModuleTree& module) {
    if (const SplitRule* const by = module.split_by()) return {{what_of(by->split), &module}};
    Events all;
    for (const ModuleTree& child : module.children) {
      const Events own = events_of(child);
      all.insert(all.end(), own.begin(), own.end());
    }
    if (module.facts.has_weights && all.empty()) return {{What::Whole, &module}};
    const std::string name = name_of_torch_module(module);
    if (!name.empty() && !is_elementwise(name)) return {{What::Mixes, &module}};
    if (!module.runs_in_order) {
      std::erase_if(all, [](const FlowEvent& event) { return event.what == What::Mixes; });
      return without_pairs(all, module);
    }
    Modules open;
    run_in_order(all, Start::Unknown, &open);
    return all;
  }

  // A program's own module may run its members in any order: a column layer and a row layer after
  // it make a pair, and the module is whole outside.
  Events without_pairs(const Events& all, const ModuleTree& module) {
    Modules open, rows;
    bool is_closed = false;
    for (const FlowEvent& event : all) {
      if (event.what == What::Opens) {
        if (std::exchange(is_closed, false)) open.clear();
        open.push_back(event.module);
      } else if (event.what == What::Closes) {
        if (open.empty()) {
          rows.push_back(event.module);
        } else {
          check_pair(open, *event.module);
          is_closed = true;
        }
      } else if (event.what == What::Keeps) {
        check_joined(open, *event.module, event.module->facts.outputs);
      }
    }
    if (is_closed) open.clear();
    if (!open.empty() && !rows.empty()) {
      open.clear();
      rows.clear();
    }
    Events left;
    for (const ModuleTree* row : rows) left.push_back({What::Closes, row});
    for (const ModuleTree* column : open) left.push_back({What::Opens, column});
    if (!left.empty()) return left;
    const bool keeps = !all.empty() && std::all_of(all.begin(), all.end(), [](const auto& event) {
      return event.what == What::Keeps;
    });
    if (keeps) return all;
    return all.empty() ? Events() : Events{{What::Whole, &module}};
  }

  // `open` has the column layers whose slices come in, and afterwards those whose slices go out.
  void run_in_order(const Events& events, Start start, Modules* open) {
    bool is_known = start == Start::Known, opened_here = false;
    for (const FlowEvent& event : events) {
      const ModuleTree& module = *event.module;
      switch (event.what) {
        case What::Opens:
          // Modules that open side by side are those of one layer.
          if (!open->empty() && !opened_here) refuse_slices(*open, module);
          if (!opened_here) open->clear();
          open->push_back(&module);
          opened_here = is_known = true;
          break;
        case What::Closes:
          if (open->empty() && is_known)
            add(text("'", module.name,
                     "' takes slices, but its input is whole: split the layer "
                     "before it by columns"));
          if (!open->empty()) check_pair(*open, module);
          open->clear();
          opened_here = false;
          is_known = true;
          break;
        case What::Keeps:
          if (open->empty() && is_known)
            add(text("'", module.name, "' takes slices, but its input is whole: leave it whole"));
          check_joined(*open, module, module.facts.outputs);
          break;
        case What::Mixes:
          if (!open->empty()) check_mixing(*open, module);
          break;
        case What::Whole:
          if (!open->empty()) refuse_slices(*open, module);
          open->clear();
          opened_here = false;
          is_known = true;
          break;
      }
    }
  }

  void refuse_slices(const Modules& open, const ModuleTree& module) {
    const ModuleKind kind = module.facts.kind;
    const std::string& column = open.front()->name;
    if (kind == ModuleKind::BatchNorm || kind == ModuleKind::GroupNorm)
      add(text("'", module.name, "' gets slices of '", column, "': split it by channels"));
    else if (kind == ModuleKind::LayerNorm)
      add(text("'", module.name, "' gets slices of '", column,
               "', but a LayerNorm needs all features: split '", column,
               "' by columns, gathered, or leave it whole"));
    else
      add(text("'", module.name, "' needs whole input and gets slices of '", column,
               "': split it by rows, or '", column, "' by columns, gathered"));
  }

  void check_mixing(const Modules& open, const ModuleTree& module) {
    const std::string name = name_of_torch_module(module);
    const ModuleTree& column = *open.front();
    if (is_random(name))
      add(text("'", module.name, "', a ", name,
               ", would draw the same numbers for each rank's slice "
               "of '",
               column.name, "': put it behind the row layer, or split '", column.name,
               "' by columns, gathered"));
    else if (!works_on_channels(name, column.facts))
      add(text("'", module.name, "', a ", name, ", gets slices of '", column.name,
               "', and may mix features: split '", column.name,
               "' by columns, gathered, or leave it whole"));
  }

  // Several projections in one, cut in one go, would mix them silently.
  void check_pair(const Modules& columns, const ModuleTree& row) {
    for (const ModuleTree* column : columns) {
      const std::int64_t outputs = column->facts.outputs, inputs = row.facts.inputs;
      if (!column->split_by()->parts.empty() || outputs <= inputs) continue;
      add(text("'", column->name, "' has ", outputs, " outputs, but '", row.name, "' takes ",
               inputs,
               ": if it holds several projections, such as queries, keys and values, give "
               "their sizes as parts; if not, give parts {",
               outputs, "}"));
    }
    check_joined(columns, row, row.facts.inputs);
  }

  // A layer behind a concatenation of slices has the slices of each of them, not one range.
  void check_joined(const Modules& columns, const ModuleTree& module, std::int64_t features) {
    if (columns.empty()) return;
    if (!module.split_by()->parts.empty()) return check_parts(columns, module, features);
    std::vector<std::string> names;
    std::int64_t sum = 0;
    for (const ModuleTree* column : columns) {
      names.push_back(text("'", column->name, "' (", column->facts.outputs, ")"));
      sum += column->facts.outputs;
    }
    const bool is_joined = columns.size() > 1
                               ? sum == features
                               : sum < features && !flattens(*columns.front(), module);
    if (!is_joined) return check_parts(columns, module, features);
    add(text("'", module.name, "' takes ", features, " features of ", join(names, " and "),
             ": give the sizes of what is concatenated as parts, in that order"));
  }

  // A product behind a convolution may take each channel's pixels, which are one range.
  static bool flattens(const ModuleTree& column, const ModuleTree& module) {
    return module.facts.kind == ModuleKind::Product && column.facts.kind == ModuleKind::Convolution;
  }

  using Parts = std::vector<std::int64_t>;

  static Parts parts_of(const ModuleTree& module, std::int64_t features) {
    const Parts& given = module.split_by()->parts;
    return given.empty() ? Parts{features} : given;
  }

  // The features of a rank are those that the column layers give it: where they are the same ones,
  // both sides share the same parts.
  void check_parts(const Modules& columns, const ModuleTree& module, std::int64_t features) {
    const Parts own = parts_of(module, features);
    Parts together;
    for (const ModuleTree* column : columns) {
      const std::int64_t outputs = column->facts.outputs;
      Parts given = parts_of(*column, outputs);
      together.insert(together.end(), given.begin(), given.end());
      if (outputs == 0 || (columns.size() > 1 && outputs < features)) continue;
      if (features > outputs && features % outputs == 0) {
        const std::int64_t times = features / outputs;
        if (flattens(*column, module)) {
          for (std::int64_t& part : given) part *= times;
        } else {
          const Parts once = given;
          for (std::int64_t i = 1; i < times; ++i)
            given.insert(given.end(), once.begin(), once.end());
        }
      }
      // With fewer features it takes some neighbours of the parts, such as one of gate and up.
      if (std::search(given.begin(), given.end(), own.begin(), own.end()) == given.end())
        refuse_parts(*column, module, own);
    }
    if (columns.size() < 2) return;
    Parts sorted = own;
    std::sort(sorted.begin(), sorted.end());
    std::sort(together.begin(), together.end());
    if (sum_of(together) == features && sorted != together)
      refuse_parts(*columns.front(), module, own);
  }

  static std::int64_t sum_of(const Parts& parts) {
    std::int64_t sum = 0;
    for (const std::int64_t part : parts) sum += part;
    return sum;
  }

  void refuse_parts(const ModuleTree& column, const ModuleTree& module, const Parts& own) {
    add(text("'", column.name, "' shares its outputs as parts {",
             join(parts_of(column, column.facts.outputs), ", "), "}, and '", module.name,
             "' takes parts {", join(own, ", "),
             "}: a rank would have other features on the two sides; give both the same parts"));
  }

  const nn::Graph& graph_;
  const std::vector<ModuleTree>& trees_;
  std::vector<Modules> outputs_;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> flow_faults(const nn::Graph& graph, const std::vector<ModuleTree>& trees) {
  return Flow(graph, trees).faults();
}

}  // namespace trestle::tensor_parallel
