#include "trestle/nn/segment.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/boundary.h"

namespace trestle::nn {

namespace {

// Memory that no layer may write to: that of values taken by more than one argument. Holds no
// reference to the memory itself, so a value is still freed after its last user.
class SharedMemory {
 public:
  void add(const at::Tensor& tensor, const SharedWith& owner) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    entries_.push_back({tensor.storage().getWeakStorageImpl(), Extent::of(tensor), owner});
  }

  // The owner of the memory of value `own`: a buffer or parameter, else another value, else itself.
  std::optional<SharedWith> find(const at::Tensor& tensor, ValueId own) const {
    std::optional<SharedWith> found;
    if (!tensor.defined() || !tensor.has_storage()) return found;
    const auto* storage = tensor.storage().unsafeGetStorageImpl();
    const Extent extent = Extent::of(tensor);
    for (const Entry& entry : entries_) {
      if (entry.storage._unsafe_get_target() != storage || !entry.extent.may_meet(extent)) continue;
      if (entry.owner.owner != SharedWith::Owner::Value) return entry.owner;
      if (!found || found->value == own) found = entry.owner;
    }
    return found;
  }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    Extent extent;
    SharedWith owner;
  };
  std::vector<Entry> entries_;
};

// After `s.add_(f(s))`, f's graph holds s, and the grad_fn of s leads to f's graph. Clear the
// rejected value's grad_fn; the reference cycle would leak.
void clear_grad_fn(const at::Tensor& tensor) {
  if (auto* view = torch::autograd::impl::get_view_autograd_meta(tensor)) {
    if (view->has_bw_view()) clear_grad_fn(view->get_backward_view().base_);
  }
  if (auto* meta = torch::autograd::impl::get_autograd_meta(tensor)) meta->grad_fn_ = nullptr;
}

}  // namespace

struct Segment::Frame {
  Values values;                  // for each slot; None before it is made and after its last use
  std::vector<int> uses;          // remaining uses
  std::vector<std::size_t> live;  // the slots that hold a value
  SharedMemory shared;

  // Stores a new value: an input, or a layer's output.
  void put(const std::vector<Slot>& slots, std::size_t index, const at::Tensor& value,
           const std::optional<SharedWith>& shared_with) {
    if (shared_with) shared.add(value, *shared_with);
    if (slots[index].shared) shared.add(value, {slots[index].value});
    for (const std::size_t other : live) {
      if (!may_share_memory(values[other], value)) continue;
      shared.add(value, {slots[other].value});
      shared.add(value, {slots[index].value});
    }
    if (uses[index] == 0 || !value.defined()) return;
    values[index] = value;
    live.push_back(index);
  }

  // The value for one more use; the last use frees it.
  Value take(std::size_t index) {
    if (--uses[index] > 0) return values[index];
    std::erase(live, index);
    return std::exchange(values[index], Value());
  }
};

std::map<ValueId, int> takers(const Graph& graph) {
  std::map<ValueId, int> result;
  for (const Edge& edge : graph.edges) ++result[{edge.from_layer, edge.from_output}];
  return result;
}

Segment::Segment(const Graph& graph, int first, int last, std::vector<ValueId> inputs,
                 std::vector<ValueId> outputs)
    : graph_(graph),
      first_(first),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      steps_(static_cast<std::size_t>(last - first)) {
  std::map<ValueId, int> slots;
  const auto slot_of = [&](ValueId value) {
    const auto [found, is_new] = slots.emplace(value, static_cast<int>(slots_.size()));
    if (is_new) slots_.push_back({.value = value});
    return found->second;
  };
  for (const ValueId& value : inputs_) input_slots_.push_back(slot_of(value));
  for (const Edge& edge : graph.edges) {
    if (edge.to_layer < first || edge.to_layer >= last) continue;
    auto& arguments = steps_[static_cast<std::size_t>(edge.to_layer - first)].arguments;
    if (static_cast<int>(arguments.size()) <= edge.to_argument)
      arguments.resize(static_cast<std::size_t>(edge.to_argument) + 1, -1);
    const int slot = slot_of({edge.from_layer, edge.from_output});
    arguments[static_cast<std::size_t>(edge.to_argument)] = slot;
    ++slots_[static_cast<std::size_t>(slot)].uses;
  }
  for (const ValueId& value : outputs_) {
    output_slots_.push_back(slot_of(value));
    ++slots_[static_cast<std::size_t>(output_slots_.back())].uses;
  }
  const auto all_takers = takers(graph);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const ValueId value = slots_[i].value;
    const auto found = all_takers.find(value);
    slots_[i].shared = found != all_takers.end() && found->second > 1;
    if (value.layer >= first && value.layer < last) {
      steps_[static_cast<std::size_t>(value.layer - first)].results.emplace_back(
          value.output, static_cast<int>(i));
    }
  }
  for (std::size_t step = 0; step < steps_.size(); ++step) {
    const Layer& layer = graph.layers[static_cast<std::size_t>(first) + step];
    if (!layer.module) continue;
    steps_[step].parameters = layer.module->parameters();  // including tied ones
    steps_[step].buffers = layer.module->buffers();
  }
}

Segment::Result Segment::run(Values inputs,
                             const std::vector<std::optional<SharedWith>>& inputs_shared,
                             const RunKey* key) const {
  Frame frame;
  frame.values.resize(slots_.size());
  for (const Slot& slot : slots_) frame.uses.push_back(slot.uses);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto slot = static_cast<std::size_t>(input_slots_[i]);
    frame.put(slots_, slot, inputs[i], i < inputs_shared.size() ? inputs_shared[i] : std::nullopt);
  }
  inputs.clear();

  Result result;
  for (std::size_t step = 0; step < steps_.size(); ++step) {
    const int layer = first_ + static_cast<int>(step);
    result.node_numbers.push_back(at::sequence_number::peek());
    Values arguments;
    std::vector<std::uint32_t> versions;
    for (const int number : steps_[step].arguments) {
      const auto slot = static_cast<std::size_t>(number);
      if (number < 0) {
        arguments.emplace_back();
      } else {
        arguments.push_back(frame.take(slot));
      }
      versions.push_back(version_of(arguments.back()));
    }
    const Values results = run_layer(graph_, layer, arguments, key);
    check_writes(layer, frame, arguments, versions);
    arguments.clear();
    for (const auto& [output, number] : steps_[step].results) {
      const at::Tensor& value = results.at(static_cast<std::size_t>(output));
      std::optional<SharedWith> shared_with;
      for (const at::Tensor& parameter : steps_[step].parameters) {
        if (may_share_memory(parameter, value))
          shared_with = {{layer, output}, SharedWith::Owner::Parameter};
      }
      for (const at::Tensor& buffer : steps_[step].buffers) {
        if (may_share_memory(buffer, value))
          shared_with = {{layer, output}, SharedWith::Owner::Buffer};
      }
      frame.put(slots_, static_cast<std::size_t>(number), value, shared_with);
    }
  }
  result.node_numbers.push_back(at::sequence_number::peek());
  for (const int slot : output_slots_) {
    const auto index = static_cast<std::size_t>(slot);
    result.outputs.push_back(frame.values[index]);
    result.outputs_shared.push_back(frame.shared.find(frame.values[index], slots_[index].value));
  }
  return result;
}

// The versions show afterwards which arguments a layer wrote to.
void Segment::check_writes(int layer, const Frame& frame, const Values& arguments,
                           const std::vector<std::uint32_t>& versions) const {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].defined() || version_of(arguments[i]) == versions[i]) continue;
    const auto shared = frame.shared.find(arguments[i], argument_value(layer, static_cast<int>(i)));
    if (!shared) continue;
    clear_grad_fn(arguments[i]);
    throw_write_error(layer, static_cast<int>(i), *shared);
  }
}

// "'join' takes as "s" and 'out' takes": everything that takes `value`, except for one argument.
std::string Segment::takers_but(ValueId value, int layer, int argument) const {
  std::vector<std::string> words;
  for (const Edge& edge : graph_.edges) {
    if (ValueId{edge.from_layer, edge.from_output} != value) continue;
    if (edge.to_layer == layer && edge.to_argument == argument) continue;
    const bool end = edge.to_layer == static_cast<int>(graph_.layers.size());
    words.push_back(
        text(end ? std::string("the model's caller")
                 : "'" + graph_.layers[static_cast<std::size_t>(edge.to_layer)].name + "'",
             " takes", edge.name.empty() ? "" : " as \"" + edge.name + "\""));
  }
  return join(words, " and ");
}

ValueId Segment::argument_value(int layer, int argument) const {
  for (const Edge& edge : graph_.edges) {
    if (edge.to_layer == layer && edge.to_argument == argument)
      return {edge.from_layer, edge.from_output};
  }
  return {};
}

// `shared`: the owner of the memory, see SharedWith.
void Segment::throw_write_error(int layer, int argument, const SharedWith& shared) const {
  const ValueId own = argument_value(layer, argument);
  const std::string others = takers_but(shared.value, layer, argument);
  std::string what = text("the value of ", describe(own), ", which shares memory with ");
  if (shared.owner != SharedWith::Owner::Value) {
    what += text(shared.owner == SharedWith::Owner::Buffer ? "a buffer of " : "a parameter of ",
                 describe({shared.value.layer, 0}));
  } else if (own == shared.value) {
    what = text("the value that ", others);
  } else if (others.empty()) {
    what += describe(shared.value);
  } else {
    what += text("the value that ", others);
  }
  throw UsageError(
      text("layer '", graph_.layers[static_cast<std::size_t>(layer)].name, "' writes into ", what),
      {.hint = "Keep it after the layer, make the layer work out of place, or give it a clone."});
}

std::string Segment::describe(ValueId value) const {
  if (value.layer == model_input) return text("input ", value.output, " of the model");
  const std::string& name = graph_.layers[static_cast<std::size_t>(value.layer)].name;
  return value.output == 0 ? text("'", name, "'")
                           : text("output ", value.output, " of '", name, "'");
}

}  // namespace trestle::nn
