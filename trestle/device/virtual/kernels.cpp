#include "trestle/device/virtual/kernels.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <tuple>

#include "trestle/device/virtual/allocator.h"
#include "trestle/device/virtual/backend.h"
#include "trestle/device/virtual/fallback.h"
#include "trestle/device/virtual/host_view.h"
#include "trestle/device/virtual/stream_order.h"

namespace trestle::virt {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

int generator_or_current(std::optional<c10::Device> device) {
  if (!device || !device->has_index()) return current_device();
  TORCH_CHECK(device->index() < device_count(), *device,
              " does not exist: there are virtual:0 to virtual:", device_count() - 1);
  return device->index();
}

// --- creating tensors ---

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(c10::layout_or_default(layout) == at::kStrided,
              "virtual devices hold dense tensors only");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "only CPU tensors can be pinned");
  return at::detail::empty_generic(size, device_allocator(generator_or_current(device)),
                                   device_keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride,
                                           device_allocator(generator_or_current(device)),
                                           device_keys, c10::dtype_or_default(dtype));
}

// --- copies, the one operator whose arguments may lie on two devices ---

// Records the order that a GPU's copy implies: a copy to the host is done when the call returns,
// unless it is non-blocking.
void note_order(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const auto block = [](const at::Tensor& tensor) { return untagged(tensor.storage().data()); };
  if (is_virtual(source.device()) && is_virtual(target.device()))
    return note_copy(block(source), source.device().index(), block(target),
                     target.device().index());
  const bool to_host = is_virtual(source.device());
  const int device = to_host ? source.device().index() : target.device().index();
  note_operator(to_host ? "a copy to the host" : "a copy from the host", device,
                {{block(to_host ? source : target), !to_host}});
  if (to_host && !non_blocking) host_waits(current_stream(device));
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const int payer = is_virtual(target.device()) ? target.device().index() : source.device().index();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const ChargeScope charge(payer);
  HostView view(payer);
  const at::Tensor from = view.to_host(source, Access::read);
  view.to_host(target, Access::write).copy_(from);
  if (checks_streams()) note_order(source, target, non_blocking);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (target.sizes() != source.sizes()) target.resize_(source.sizes());
  return copy_from(source, target, false);
}

// Tensor.record_stream(): keeps its memory until the stream has done its queued work.
void record_stream(at::Tensor& tensor, c10::Stream stream) {
  if (tensor.has_storage()) keep_for_stream(untagged(tensor.storage().data()), stream);
}

bool can_change_device_in_place(const at::Tensor& self, const at::Tensor& from) {
  const auto suits = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && (tensor.is_cpu() || is_virtual(tensor.device()));
  };
  return suits(self) && suits(from);
}

// --- storages: tensors that must share one, which the fallback's aliases cannot do ---

at::Tensor& set_storage(at::Tensor& self, at::Storage source, std::int64_t offset,
                        at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto count = static_cast<std::int64_t>(source.nbytes() / self.dtype().itemsize());
  return at::native::set_storage_cpu_(self, std::move(source), 0, {count}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return at::native::set_storage_cpu_(self, source.storage(), source.storage_offset(),
                                      source.sizes(), source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  const at::Storage storage(at::Storage::use_byte_size_t(), 0,
                            device_allocator(self.device().index()), true);
  return at::native::set_storage_cpu_(self, storage, 0, {0}, {});
}

// --- operators that libtorch computes differently on an accelerator than on the CPU ---

// The CPU's formula. The fused formula of accelerators draws without a generator argument and
// rounds differently.
at::Tensor dropout(const at::Tensor& input, double p, bool train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (p == 0 || !train || input.sym_numel() == 0) return input;
  if (p == 1) return input.mul(at::zeros({}, input.options()));
  const at::Tensor noise = at::empty_like(input).bernoulli_(1 - p).div_(1 - p);
  return input * noise;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates,
                                                         const at::Tensor& hidden_gates,
                                                         const at::Tensor& cell,
                                                         const OptionalTensor& input_bias,
                                                         const OptionalTensor& hidden_bias) {
  at::Tensor gates = input_gates + hidden_gates;
  if (input_bias && input_bias->defined()) gates = gates + *input_bias + *hidden_bias;
  const auto parts = gates.chunk(4, 1);
  const at::Tensor next = parts[1].sigmoid() * cell + parts[0].sigmoid() * parts[2].tanh();
  return {parts[3].sigmoid() * next.tanh(), next, gates};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates,
                                            const at::Tensor& hidden_gates,
                                            const at::Tensor& hidden,
                                            const OptionalTensor& input_bias,
                                            const OptionalTensor& hidden_bias) {
  const auto parts = [](const at::Tensor& gates, const OptionalTensor& bias) {
    return (bias && bias->defined() ? gates + *bias : gates).chunk(3, 1);
  };
  const auto input = parts(input_gates, input_bias);
  const auto recurrent = parts(hidden_gates, hidden_bias);
  const at::Tensor reset = (recurrent[0] + input[0]).sigmoid();
  const at::Tensor update = (recurrent[1] + input[1]).sigmoid();
  const at::Tensor fresh = (input[2] + reset * recurrent[2]).tanh();
  return {(hidden - fresh) * update + fresh, reset};
}

// These use differentiable operators, so they need no backward of their own. Registered for tensors
// with and without autograd keys (inference mode has none).
void register_composites(torch::Library& library) {
  library.impl("dropout", dropout);
  library.impl("_thnn_fused_lstm_cell", lstm_cell);
  library.impl("_thnn_fused_gru_cell", gru_cell);
}

// libtorch's kernels for sparse tensors read their memory directly, which the host cannot.
void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  TORCH_CHECK(
      false, op.schema().name(),
      " of a sparse tensor: virtual devices hold dense tensors only. Make an embedding with "
      "sparse(false), whose gradient is dense; call to_dense(); or keep the layer on the "
      "CPU or a GPU.");
}

torch::CppFunction boxed_fallback() {
  return torch::CppFunction::makeFromBoxedFunction<&fallback>();
}

// An operator with both a CPU kernel and a composite formula would use the formula here, which
// rounds differently (layer norm, group norm, silu). Registering the fallback makes it use the CPU
// kernel.
void prefer_cpu_kernels(torch::Library& aten) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || name.name.rfind("aten::", 0) != 0) continue;
    const auto has = [&op](c10::DispatchKey key) { return op->hasKernelForDispatchKey(key); };
    if (!has(c10::DispatchKey::CPU) || has(c10::DispatchKey::PrivateUse1)) continue;
    if (has(c10::DispatchKey::CompositeExplicitAutograd) ||
        has(c10::DispatchKey::CompositeImplicitAutograd) ||
        has(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) {
      aten.impl(toString(name).c_str(), boxed_fallback());
    }
  }
}

// scaled_dot_product_attention() asks this which operator to call. Without an answer it takes
// products and a softmax, which hold all pairs of tokens. The conditions are those of the CPU's own
// answer, which libtorch does not export.
std::int64_t choose_attention(const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const OptionalTensor& mask, double dropout,
                              bool /*causal*/, std::optional<double> /*scale*/, bool /*grouped*/) {
  const bool has_mask = mask && mask->defined();
  const auto fits = [&](const at::Tensor& x) {
    return x.dim() == 4 && x.size(0) == query.size(0) && x.size(1) == query.size(1) &&
           x.size(3) == query.size(3) && x.stride(3) == 1 && x.size(2) > 0 &&
           x.scalar_type() == query.scalar_type();
  };
  const bool fused =
      at::globalContext().userEnabledFlashSDP() && dropout == 0 && fits(query) && fits(key) &&
      fits(value) && query.is_floating_point() &&
      (!has_mask || (!mask->requires_grad() && (mask->dim() == 2 || mask->dim() == 4)));
  return static_cast<std::int64_t>(fused ? at::SDPBackend::flash_attention : at::SDPBackend::math);
}

}  // namespace

void register_kernels() {
  using torch::Library;
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(choose_attention);
  // Kept for the life of the process: unregistering would race with threads that are still running.
  static auto* libraries = new std::vector<Library>;
  libraries->reserve(7);
  const auto library = [](const char* space, c10::DispatchKey key) -> Library& {
    return libraries->emplace_back(Library::IMPL, space, key, __FILE__, __LINE__);
  };
  library("_", c10::DispatchKey::PrivateUse1).fallback(boxed_fallback());
  for (const auto key :
       {c10::DispatchKey::SparsePrivateUse1, c10::DispatchKey::SparseCsrPrivateUse1})
    library("_", key).fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());

  Library& aten = library("aten", c10::DispatchKey::PrivateUse1);
  aten.impl("empty.memory_format", empty);
  aten.impl("empty_strided", empty_strided);
  aten.impl("_copy_from", copy_from);
  aten.impl("_copy_from_and_resize", copy_from_and_resize);
  aten.impl("_has_compatible_shallow_copy_type", can_change_device_in_place);
  aten.impl("set_.source_Storage_storage_offset", set_storage);
  aten.impl("set_.source_Storage", set_whole_storage);
  aten.impl("set_.source_Tensor", set_tensor);
  aten.impl("set_", set_empty);
  aten.impl("record_stream", record_stream);
  // Views: libtorch's own kernels, which only read shapes.
  aten.impl("as_strided", at::native::as_strided_tensorimpl);
  aten.impl("view", at::native::view);
  aten.impl("_reshape_alias", at::native::_reshape_alias);
  aten.impl("unfold", at::native::unfold);
  // libtorch's own kernel would call convolution_overrideable on an accelerator.
  aten.impl("convolution", boxed_fallback());
  aten.impl("convolution_backward", boxed_fallback());
  register_composites(aten);
  prefer_cpu_kernels(aten);  // last: it skips operators that are registered already
  register_composites(library("aten", c10::DispatchKey::AutogradPrivateUse1));

  // Copies understand conjugate and negative bits, which the CPU aliases have. Resolving them first
  // would recurse between clone and copy forever.
  library("aten", c10::DispatchKey::Conjugate)
      .impl("_copy_from", torch::CppFunction::makeFallthrough());
  library("aten", c10::DispatchKey::Negative)
      .impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace trestle::virt
