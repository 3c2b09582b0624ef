#include "trestle/tensor_parallel/split_plan.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/comm/gather.h"
#include "trestle/device/weight_kernel.h"
#include "trestle/nn/held_slices.h"
#include "trestle/tensor_parallel/split_flow.h"
#include "trestle/tensor_parallel/split_module.h"

namespace trestle::tensor_parallel {

namespace {

// Whether the name matches a pattern with * for any characters. Each * but the last takes as few
// characters as possible, which never loses a match.
bool matches_layer(std::string_view pattern, std::string_view name) {
  std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (name.substr(0, star) != pattern.substr(0, star)) return false;
  name.remove_prefix(star);
  while (true) {
    pattern.remove_prefix(star + 1);
    star = pattern.find('*');
    if (star == std::string_view::npos) return name.ends_with(pattern);
    const std::size_t found = name.find(pattern.substr(0, star));
    if (found == std::string_view::npos) return false;
    name.remove_prefix(found + star);
  }
}

// Equal for equal bits.
std::uint64_t hash_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().to(at::kCPU).contiguous();
  const auto* const bytes = static_cast<const char*>(values.const_data_ptr());
  std::uint64_t hash = 0xcbf29ce484222325ULL, word = 0;
  for (std::size_t at = 0; at < values.nbytes(); at += sizeof word) {
    word = 0;
    std::memcpy(&word, bytes + at, std::min(sizeof word, values.nbytes() - at));
    hash = (hash ^ word) * 0x100000001b3ULL;
    hash ^= hash >> 29;
  }
  return hash;
}

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() || name.empty() ? prefix + name : prefix + "." + name;
}

// Reads a model without changing it: its modules, their rules, and all faults.
class Inspection {
 public:
  Inspection(const nn::Graph& graph, const TensorRanks& ranks, const std::vector<SplitRule>& rules)
      : graph_(graph), ranks_(ranks), rules_(rules), uses_(rules.size(), 0) {
    for (const nn::Layer& layer : graph.layers) inspect(layer);
    check_rules();
    check_ties();
    for (std::string& fault : flow_faults(graph, trees_)) faults_.push_back(std::move(fault));
    for (const SplitRule& rule : rules)
      agreed_ += text("rule '", rule.layer, "' ", to_string(rule.split), " {",
                      join(rule.parts, ", "), "} ", rule.heads, "\n");
  }

  // By layer, the names of its split modules in it, and their rules.
  using Chosen = std::vector<std::pair<std::string, SplitRule>>;
  const std::vector<Chosen>& chosen() const { return chosen_; }
  const std::vector<SplitLayer>& lines() const { return lines_; }
  const std::vector<std::string>& faults() const { return faults_; }
  // Equal on ranks that split the same model in the same way.
  const std::string& agreed() const { return agreed_; }

 private:
  void inspect(const nn::Layer& layer) {
    chosen_.emplace_back();
    if (!layer.module) {
      trees_.push_back({.name = layer.name, .facts = {}, .rule = nullptr, .children = {}});
      return;
    }
    const auto owners = owners_for_now(static_cast<int>(trees_.size()));
    const auto for_now = layer.module.make_temporarily();
    const std::shared_ptr<torch::nn::Module> module = layer.module.make();
    trees_.push_back(tree_of(*module, layer.name, ""));
    const nn::ParameterSlices held = nn::slices_held_by(*module);
    for (const auto& [own, place] : held) places_[joined(layer.name, own)] = place;
    for (const auto& item : module->named_parameters()) {
      const std::string name = joined(layer.name, item.key());
      by_tensor_[item.value().unsafeGetTensorImpl()].push_back(name);
      if (device::is_slice(item.value()))
        faults_.push_back(text("'", name, "' is split already"));
      else if (const auto own = held.find(item.key()); own != held.end())
        agreed_ += text(name, " [", join(own->second.whole, ", "), "] split along ",
                        own->second.dimension, " by its layer\n");
      else
        agreed_ += text(name, " [", join(item.value().sizes(), ", "), "] with the values ",
                        hash_of(item.value()), "\n");
    }
    for (const auto& item : module->named_buffers())
      agreed_ += text("the buffer ", joined(layer.name, item.key()), " with the values ",
                      hash_of(item.value()), "\n");
    for (const auto& item : module->named_modules(layer.name)) agree_on_options(item);
    // A tensor that is discarded with its layer may have another one's address.
    check_shared();
  }

  // Layers of torch print their options, such as a dilation or the slope of an activation.
  template <class Item>
  void agree_on_options(const Item& item) {
    if (!item.value()->name().starts_with("torch::nn::")) return;
    std::ostringstream options;
    item.value()->pretty_print(options);
    agreed_ += text(item.key(), " is ", options.str(), "\n");
  }

  // Creating a layer creates the layers to which it is tied.
  std::vector<std::shared_ptr<void>> owners_for_now(int layer) const {
    std::vector<int> chain = {layer};
    for (std::size_t i = 0; i < chain.size(); ++i)
      for (const nn::ParameterTie& tie : graph_.ties)
        if (tie.layer == chain[i]) chain.push_back(tie.owner);
    std::vector<std::shared_ptr<void>> made;
    for (std::size_t i = chain.size() - 1; i > 0; --i)
      made.push_back(graph_.layers[static_cast<std::size_t>(chain[i])].module.make_temporarily());
    return made;
  }

  ModuleTree tree_of(const torch::nn::Module& module, const std::string& layer,
                     const std::string& name) {
    ModuleTree tree{.name = joined(layer, name), .facts = facts_of(module), .children = {}};
    tree.runs_in_order = dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr;
    if (tree.facts.has_weights || module.children().empty()) names_.push_back(tree.name);
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      if (!matches_layer(rules_[i].layer, tree.name)) continue;
      // A pattern may match a module of modules too, such as "block1" of "block*".
      if (!tree.facts.has_weights && rules_[i].layer != tree.name) continue;
      ++uses_[i];
      if (tree.rule != nullptr)
        faults_.push_back(text("'", tree.name, "' has two rules, '", tree.rule->layer, "' and '",
                               rules_[i].layer, "'"));
      tree.rule = &rules_[i];
    }
    if (tree.rule != nullptr) choose(module, name, tree);
    for (const auto& child : module.named_children())
      tree.children.push_back(tree_of(*child.value(), layer, joined(name, child.key())));
    return tree;
  }

  void choose(const torch::nn::Module& module, const std::string& name, const ModuleTree& tree) {
    const auto faults = faults_of(tree.facts, *tree.rule, ranks_.size());
    for (const std::string& fault : faults) faults_.push_back(text("'", tree.name, "': ", fault));
    if (!faults.empty()) return;
    chosen_.back().emplace_back(name, *tree.rule);
    lines_.push_back(describe(module, *tree.rule, ranks_.of(tree.name)));
    for (const auto& [own, place] : places_in(module, *tree.rule, ranks_))
      places_[joined(tree.name, own)] = place;
  }

  void check_rules() {
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      if (uses_[i] != 0) continue;
      const std::string& name = rules_[i].layer;
      const bool is_function = std::ranges::any_of(graph_.layers, [&](const nn::Layer& layer) {
        return !layer.module && layer.name == name;
      });
      faults_.push_back(is_function
                            ? text("'", name, "' is a function, which has no weights to split")
                            : text("no layer is named '", name, "'", did_you_mean(name, names_)));
    }
  }

  void check_same(const std::string& one, const std::string& other) {
    const auto a = places_.find(one), b = places_.find(other);
    if (a == places_.end() && b == places_.end()) return;
    if (a != places_.end() && b != places_.end() && a->second == b->second) return;
    faults_.push_back(text("'", one, "' is tied to '", other,
                           "': split both along the same dimension, or neither"));
  }

  void check_ties() {
    for (const nn::ParameterTie& tie : graph_.ties)
      check_same(joined(name_of(tie.layer), tie.parameter),
                 joined(name_of(tie.owner), tie.owner_parameter));
  }

  // Modules of one layer may share a parameter without a tie.
  void check_shared() {
    for (const auto& [tensor, names] : std::exchange(by_tensor_, {}))
      for (const std::string& name : names) check_same(name, names.front());
  }

  const std::string& name_of(int layer) const {
    return graph_.layers[static_cast<std::size_t>(layer)].name;
  }

  const nn::Graph& graph_;
  const TensorRanks& ranks_;
  const std::vector<SplitRule>& rules_;
  std::vector<int> uses_;
  std::vector<ModuleTree> trees_;
  std::vector<Chosen> chosen_;
  std::vector<SplitLayer> lines_;
  std::vector<std::string> faults_, names_;
  std::map<const void*, std::vector<std::string>> by_tensor_;
  nn::ParameterSlices places_;
  std::string agreed_;
};

std::string next_line(std::istringstream& lines) {
  std::string line;
  return std::getline(lines, line) ? line : "nothing";
}

void check_agreement(const TensorRanks& ranks, const std::string& agreed) {
  if (!ranks.exist()) return;
  const auto difference = comm::find_difference(ranks.group(), agreed);
  if (!difference) return;
  std::istringstream first(difference->first), other(difference->other);
  std::string a, b;
  do {
    a = next_line(first);
    b = next_line(other);
  } while (a == b);
  throw UsageError(
      text("the tensor ranks split different models: ", a, " on tensor rank 0, ", b,
           " on tensor rank ", difference->rank),
      {.hint = "Give all ranks the same plan, and the same model with the same seed."});
}

void check_faults(const std::vector<std::string>& faults, int ranks) {
  if (faults.empty()) return;
  throw UsageError(text("the model cannot be split over ", ranks, " tensor ranks by this plan:\n  ",
                        join(faults, "\n  ")),
                   {.hint = "Nothing was changed."});
}

nn::ParameterSlices split_layer(torch::nn::Module& module, const std::string& layer,
                                const Inspection::Chosen& chosen, const TensorRanks& ranks) {
  nn::ParameterSlices places;
  const auto modules = module.named_modules("", /*include_self=*/true);
  for (const auto& [name, rule] : chosen)
    for (const auto& [own, place] :
         split_module(*modules[name], rule, ranks.of(joined(layer, name))))
      places.emplace(joined(name, own), place);
  const nn::ParameterSlices held = nn::slices_held_by(module);
  for (const auto& item : module.named_parameters())
    if (!device::is_slice(item.value()) && !held.contains(item.key()))
      device::mark_as_whole(item.value(), joined(layer, item.key()));
  return places;
}

std::string padded_to(std::string word, std::size_t width) {
  word.resize(std::max(word.size(), width), ' ');
  return word;
}

}  // namespace

const char* to_string(Split split) {
  switch (split) {
    case Split::Columns:
      return "columns";
    case Split::ColumnsGathered:
      return "columns, gathered";
    case Split::Rows:
      return "rows";
    case Split::Vocabulary:
      return "vocabulary";
    case Split::Channels:
      return "channels";
  }
  return "";
}

std::string SplitPlan::description() const {
  std::vector<std::vector<std::string>> table = {
      {"layer", "kind", "split", "this rank's slice", "bytes", "of", "sent forward", "backward"}};
  for (const SplitLayer& one : layers)
    table.push_back({one.name, one.type, to_string(one.split), one.slice,
                     format_bytes(static_cast<Bytes>(one.own_bytes)),
                     format_bytes(static_cast<Bytes>(one.whole_bytes)), one.forward, one.backward});
  std::vector<std::size_t> widths(table[0].size(), 0);
  for (const auto& row : table)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string lines = text("tensor rank ", rank, " of ", ranks, "\n");
  for (const auto& row : table) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += padded_to(row[i], widths[i] + 2);
    lines += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return lines;
}

SplitPlan split(const nn::Layers& net, const TensorRanks& ranks,
                const std::vector<SplitRule>& rules) {
  const nn::Graph graph = net.graph();
  const Inspection inspection(graph, ranks, rules);
  // All ranks compare, also those with faults: the other ones would wait.
  check_agreement(ranks, inspection.agreed());
  check_faults(inspection.faults(), ranks.size());
  SplitPlan plan{.rank = ranks.rank(), .ranks = ranks.size(), .layers = inspection.lines()};
  if (ranks.alone()) return plan;
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    if (!graph.layers[i].module) continue;
    graph.layers[i].module.slice(
        [layer = graph.layers[i].name, chosen = inspection.chosen()[i],
         ranks](torch::nn::Module& module) { return split_layer(module, layer, chosen, ranks); });
  }
  return plan;
}

}  // namespace trestle::tensor_parallel
