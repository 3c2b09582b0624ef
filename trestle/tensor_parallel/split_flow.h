#pragma once

#include <string>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/tensor_parallel/split_module.h"

// The flow of slices between the layers of a model, as far as the order of its layers is known.
// Inside of tensor_parallel. Not installed.
namespace trestle::tensor_parallel {

// A module and its children, in the order in which they were registered.
struct ModuleTree {
  std::string name;  // in the model
  ModuleFacts facts;
  const SplitRule* rule = nullptr;
  // How it is split: by its rule, or by itself. Null for a whole module.
  const SplitRule* split_by() const {
    return rule != nullptr || !facts.own_rule ? rule : &*facts.own_rule;
  }
  bool runs_in_order = false;  // a torch::nn::Sequential
  std::vector<ModuleTree> children;
};

// The faults in the order of whole and split layers. `trees` has one for each layer of the graph.
std::vector<std::string> flow_faults(const nn::Graph& graph, const std::vector<ModuleTree>& trees);

}  // namespace trestle::tensor_parallel
