#include "trestle/device/virtual/fallback.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "trestle/device/layer_scope.h"
#include "trestle/device/threads.h"
#include "trestle/device/virtual/allocator.h"
#include "trestle/device/virtual/backend.h"
#include "trestle/device/virtual/generator.h"
#include "trestle/device/virtual/host_view.h"
#include "trestle/device/virtual/stream_order.h"

namespace trestle::virt {
namespace {

// The properties of an operator that the fallback needs, read once from its schema.
struct Traits {
  std::uint64_t written = 0;                  // bit i: argument i is written to
  std::uint64_t host_results = 0;             // bit i: result i stays on the CPU, as with CUDA
  std::optional<std::size_t> generator = {};  // the argument that takes a generator
  bool host_indices = false;                  // lists of optional tensors may be CPU index tensors
  bool host_arguments = false;                // takes CPU tensors too (lengths of packed sequences)
  bool host_waits = false;                    // on a GPU, the host waits for its result
};

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [name](std::string_view prefix) {
    return name.substr(0, prefix.size()) == prefix;
  });
}

Traits read_traits(const c10::FunctionSchema& schema) {
  Traits traits;
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias && alias->isWrite()) traits.written |= std::uint64_t{1} << i;
    auto type = arguments[i].type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (type->kind() == c10::TypeKind::GeneratorType) traits.generator = i;
  }
  const std::string& name = schema.name();
  traits.host_indices =
      starts_with_any(name, {"aten::index", "aten::_index", "aten::_unsafe_index"});
  traits.host_arguments =
      starts_with_any(name, {"aten::_pack_padded_sequence", "aten::_pad_packed_sequence"});
  traits.host_waits =
      starts_with_any(name, {"aten::_local_scalar_dense", "aten::equal", "aten::nonzero",
                             "aten::masked_select", "aten::_unique"});
  if (name == "aten::_pack_padded_sequence")
    traits.host_results = 0b10;  // batch sizes are read by the host
  return traits;
}

const Traits& traits_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, Traits> known;
  const c10::FunctionSchema* schema = &op.schema();
  const auto found = known.find(schema);
  return found != known.end() ? found->second
                              : known.emplace(schema, read_traits(*schema)).first->second;
}

// The host tensors that an argument may hold. A scalar is a tensor without dimensions.
enum class HostTensors { Any, Scalars, None };

// Finds the one device of a call, or throws as libtorch does when tensors lie on several.
class DeviceOfCall {
 public:
  DeviceOfCall(const c10::OperatorHandle& op, const Traits& traits) : op_(op), traits_(traits) {}

  void see(std::size_t index, const c10::IValue& value) {
    const bool written = (traits_.written >> index) & 1;
    const HostTensors usual = written ? HostTensors::None : HostTensors::Scalars;
    const HostTensors allowed = traits_.host_arguments ? HostTensors::Any : usual;
    if (value.isTensor()) {
      see(value.toTensor(), allowed);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) see(tensor, allowed);
    } else if (value.isOptionalTensorList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) see(item.toTensor(), traits_.host_indices ? HostTensors::Any : usual);
      }
    } else if (value.isDevice() && is_virtual(value.toDevice()) && device_ == no_device) {
      device_ = value.toDevice().has_index() ? value.toDevice().index() : current_device();
    }
  }

  int found() const {
    if (device_ == no_device) return current_device();
    if (other_) fail(*other_);
    return device_;
  }

 private:
  void see(const at::Tensor& tensor, HostTensors allowed) {
    if (!tensor.defined()) return;
    const c10::Device device = tensor.device();
    if (!is_virtual(device)) {
      const bool scalar = tensor.dim() == 0;
      if (allowed == HostTensors::None || (allowed == HostTensors::Scalars && !scalar))
        other_ = device;
    } else if (device_ == no_device) {
      device_ = device.index();
    } else if (device_ != device.index()) {
      fail(device);
    }
  }

  [[noreturn]] void fail(c10::Device other) const {
    const std::string_view layer = current_layer();
    TORCH_CHECK(false,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                nth_device(device_), " and ", other, "! (", op_.operator_name(),
                layer.empty() ? "" : " in layer '", layer, layer.empty() ? ")" : "')");
  }

  const c10::OperatorHandle& op_;
  const Traits& traits_;
  int device_ = no_device;
  std::optional<c10::Device> other_;
};

c10::IValue to_host(HostView& view, const c10::IValue& value, Access access) {
  if (value.isTensor()) return view.to_host(value.toTensor(), access);
  if (value.isTensorList()) {
    auto tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) tensor = view.to_host(tensor, access);
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const c10::IValue& item : value.toListRef()) {
      tensors.push_back(item.isTensor() ? std::optional(view.to_host(item.toTensor(), access))
                                        : std::nullopt);
    }
    return tensors;
  }
  if (value.isDevice()) return c10::Device(c10::DeviceType::CPU);
  return value;
}

c10::IValue to_device(HostView& view, const c10::IValue& value) {
  if (value.isTensor()) return view.to_device(value.toTensor());
  if (value.isTensorList()) {
    auto tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) tensor = view.to_device(tensor);
    return tensors;
  }
  return value;
}

// Records the call's memory accesses for the stream check.
void note_call(const c10::OperatorHandle& op, const Traits& traits, int device,
               const HostView& view, const torch::jit::Stack& stack) {
  std::vector<BlockAccess> accesses = view.accesses();
  const auto add_result = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !is_virtual(tensor.device())) return;
    const void* block = untagged(tensor.storage().data());
    const auto known = [block](const BlockAccess& access) { return access.block == block; };
    if (std::none_of(accesses.begin(), accesses.end(), known)) accesses.push_back({block, true});
  };
  for (std::size_t i = stack.size() - op.schema().returns().size(); i < stack.size(); ++i) {
    if (stack[i].isTensor()) add_result(stack[i].toTensor());
    if (!stack[i].isTensorList()) continue;
    for (const at::Tensor& tensor : stack[i].toTensorList()) add_result(tensor);
  }
  note_operator(op.schema().name(), device, accesses);
  if (traits.host_waits) host_waits(current_stream(device));
}

// libtorch keeps the number of threads for each thread. A device's number, if set, overrides it in
// any thread that runs its operators.
void take_threads_of(int device) {
  thread_local int own = 0;  // this thread's number before it took a device's number
  thread_local int taken = 0;
  const int wanted = threads_of(device).count.load(std::memory_order_relaxed);
  if (wanted == taken) return;
  if (taken == 0) own = at::get_num_threads();
  set_own_threads(wanted == 0 ? own : wanted);
  taken = wanted;
}

}  // namespace

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Traits& traits = traits_of(op);
  const std::size_t argument_count = op.schema().arguments().size();
  const std::size_t first = stack->size() - argument_count;

  DeviceOfCall call(op, traits);
  for (std::size_t i = 0; i < argument_count; ++i) call.see(i, (*stack)[first + i]);
  const int device = call.found();

  take_threads_of(device);
  HostView view(device);
  for (std::size_t i = 0; i < argument_count; ++i) {
    auto& value = (*stack)[first + i];
    value = to_host(view, value, (traits.written >> i) & 1 ? Access::write : Access::read);
  }
  std::optional<RandomDraw> draw;
  if (traits.generator) {
    auto& value = (*stack)[first + *traits.generator];
    value = host_generator(device, value.isNone() ? at::Generator() : value.toGenerator(), draw);
  }
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const ChargeScope charge(device);
    op.redispatchBoxed(cpu_keys, stack);
  }
  view.write_back();
  const std::size_t result_count = op.schema().returns().size();
  const std::size_t first_result = stack->size() - result_count;
  for (std::size_t i = 0; i < result_count; ++i) {
    if ((traits.host_results >> i) & 1) continue;
    auto& value = (*stack)[first_result + i];
    value = to_device(view, value);
  }
  if (checks_streams()) note_call(op, traits, device, view, *stack);
}

}  // namespace trestle::virt
