#include "trestle/device/weight_kernel.h"

#include <ATen/RedispatchFunctions.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/conv1d_native.h>
#include <ATen/ops/conv2d_native.h>
#include <ATen/ops/conv3d_native.h>
#include <ATen/ops/conv_transpose1d_native.h>
#include <ATen/ops/conv_transpose2d_native.h>
#include <ATen/ops/conv_transpose3d_native.h>
#include <ATen/ops/embedding_native.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/t_native.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "trestle/base/error.h"

namespace trestle::device {
namespace {

using c10::DispatchKey;
using Maybe = std::optional<at::Tensor>;

// Stored where Python keeps its hooks of accumulated gradients, which a C++ program does not have.
// So it lives as long as the tensor object and needs no table. The list of a gradient's hooks would
// not do: when a program registers one, torch removes the earlier ones.
struct Attached : torch::autograd::PostAccumulateGradHook {
  void operator()(const at::Tensor& /*accumulated*/) override {}
  std::array<std::shared_ptr<WeightKernel>, 3> kernels;
  bool is_slice = false;
  std::string name_of_whole;
};

Attached* attached_to(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  auto* const meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta == nullptr ? nullptr : dynamic_cast<Attached*>(meta->post_acc_grad_hooks_.get());
}

Attached& attached(const at::Tensor& tensor) {
  if (Attached* const known = attached_to(tensor)) return *known;
  auto fresh = std::make_unique<Attached>();
  Attached& result = *fresh;
  torch::autograd::impl::materialize_autograd_meta(tensor)->post_acc_grad_hooks_ = std::move(fresh);
  return result;
}

thread_local bool inside_kernel = false;

std::shared_ptr<WeightKernel> kernel_of(const at::Tensor& weight, WeightOperator of) {
  if (inside_kernel) return nullptr;
  Attached* const found = attached_to(weight);
  return found == nullptr ? nullptr : found->kernels[static_cast<std::size_t>(of)];
}

// Whether the tensor is a slice for another operator alone: this one would compute with the slice
// as if it were the whole weight.
bool is_foreign(const at::Tensor& weight, WeightOperator of) {
  if (inside_kernel) return false;
  const Attached* const found = attached_to(weight);
  if (found == nullptr || !found->is_slice || found->kernels[static_cast<std::size_t>(of)])
    return false;
  return std::ranges::any_of(found->kernels, [](const auto& kernel) { return kernel != nullptr; });
}

[[noreturn]] void throw_foreign() {
  throw UsageError(
      "a weight that tensor ranks split for one layer is used by another kind of layer, "
      "which would compute with this rank's slice alone",
      {.hint = "Give both layers a rule of the plan: a table that is looked up, "
               "Split::Vocabulary, may also be the weight of a Linear, "
               "Split::ColumnsGathered."});
}

at::Tensor run(WeightKernel& kernel, const WeightCall& call) {
  struct Inside {
    Inside() { inside_kernel = true; }
    ~Inside() { inside_kernel = false; }
  } const inside;
  return kernel.run(call);
}

Maybe if_defined(const at::Tensor& tensor) { return tensor.defined() ? Maybe(tensor) : Maybe(); }

// An operator of (input, weight, bias, others...): `plain` with a check before it.
template <WeightOperator of, auto plain>
struct Checked;
template <WeightOperator of, class... Others,
          at::Tensor (*plain)(const at::Tensor&, const at::Tensor&, const Maybe&, Others...)>
struct Checked<of, plain> {
  static at::Tensor call(const at::Tensor& input, const at::Tensor& weight, const Maybe& bias,
                         Others... others) {
    const auto kernel = kernel_of(weight, of);
    if (kernel == nullptr && is_foreign(weight, of)) throw_foreign();
    if (kernel == nullptr) return plain(input, weight, bias, others...);
    return run(*kernel,
               {.input = input,
                .weight = weight,
                .bias = bias.value_or(at::Tensor()),
                .plain = [&](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
                  return plain(x, w, if_defined(b), others...);
                }});
  }
};

// --- torch::nn::Linear: addmm() or matmul() with weight.t() ---

// A transposed weight has this key, which comes before autograd's and autocast's, so that no other
// product is touched. No part of torch gives it to a tensor outside of its own tests.
constexpr auto transposed_key = DispatchKey::TESTING_ONLY_GenericWrapper;

struct Keys : c10::TensorImpl {
  static c10::DispatchKeySet& of(const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->*(&Keys::key_set_);
  }
};

// A short-lived tensor, of which set_data() is not called: that would remove this.
struct TransposeOf : c10::BackendMeta {
  explicit TransposeOf(at::Tensor of) : weight(std::move(of)) {}
  at::Tensor weight;
};

at::Tensor transposed(const at::Tensor& self) {
  at::Tensor result = at::native::t(self);
  if (kernel_of(self, WeightOperator::Product) == nullptr &&
      !is_foreign(self, WeightOperator::Product))
    return result;
  result.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<TransposeOf>(self));
  Keys::of(result) = Keys::of(result).add(transposed_key);
  return result;
}

// The two forms of torch::nn::functional::linear().
at::Tensor functional_linear(const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& bias) {
  return bias.defined() ? at::addmm(bias, x, weight.t()) : at::matmul(x, weight.t());
}

// The weight of which this is the transpose, if it has a kernel.
at::Tensor weight_behind(const at::Tensor& tensor) {
  auto* const found = dynamic_cast<TransposeOf*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
  if (found == nullptr) return {};
  if (is_foreign(found->weight, WeightOperator::Product)) throw_foreign();
  if (kernel_of(found->weight, WeightOperator::Product) == nullptr) return {};
  return found->weight;
}

at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const auto kernel = kernel_of(weight, WeightOperator::Product);
  return run(*kernel, {.input = x, .weight = weight, .bias = bias, .plain = functional_linear});
}

at::Tensor addmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                 const at::Scalar& beta, const at::Scalar& alpha) {
  const c10::impl::ExcludeDispatchKeyGuard below(transposed_key);
  const at::Tensor weight = weight_behind(b);
  if (!weight.defined() || !beta.equal(1) || !alpha.equal(1))
    return at::addmm(self, a, b, beta, alpha);
  return product(a, weight, self);
}

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) {
  const c10::impl::ExcludeDispatchKeyGuard below(transposed_key);
  const at::Tensor weight = weight_behind(b);
  return weight.defined() ? product(a, weight, {}) : at::matmul(a, b);
}

// --- torch::nn::Embedding ---

// `plain` takes (weight, indices, padding_idx).
template <class Plain>
at::Tensor look_up(const at::Tensor& weight, const at::Tensor& indices, const Plain& plain) {
  const auto kernel = kernel_of(weight, WeightOperator::Lookup);
  if (kernel == nullptr && is_foreign(weight, WeightOperator::Lookup)) throw_foreign();
  if (kernel == nullptr) return plain(weight, indices);
  return run(*kernel, {.input = indices,
                       .weight = weight,
                       .bias = {},
                       .plain = [&](const at::Tensor& rows, const at::Tensor& table,
                                    const at::Tensor&) { return plain(table, rows); }});
}

at::Tensor embedding_with_gradient(c10::DispatchKeySet keys, const at::Tensor& weight,
                                   const at::Tensor& indices, c10::SymInt padding,
                                   bool scale_by_frequency, bool sparse) {
  return look_up(weight, indices, [&](const at::Tensor& table, const at::Tensor& rows) {
    // AutogradOther has torch's own kernel, which this one replaces for the devices' keys.
    const auto own = keys.remove(DispatchKey::AutogradFunctionality);
    return at::redispatch::embedding_symint(own.add(DispatchKey::AutogradOther), table, rows,
                                            padding, scale_by_frequency, sparse);
  });
}

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& indices, c10::SymInt padding,
                     bool scale_by_frequency, bool sparse) {
  return look_up(weight, indices, [&](const at::Tensor& table, const at::Tensor& rows) {
    return at::native::embedding_symint(table, rows, padding, scale_by_frequency, sparse);
  });
}

// --- registration ---

// Torch warns when a kernel replaces another one; here this is intended.
struct SilentWarnings : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Kept for the life of the process: unregistering would race with threads that are still running.
torch::Library& library(const char* space, DispatchKey key) {
  static auto& kept = *new std::deque<torch::Library>();
  return kept.emplace_back(torch::Library::IMPL, space, key, __FILE__, __LINE__);
}

template <auto plain>
constexpr auto convolution = &Checked<WeightOperator::Convolution, plain>::call;

// Autocast gives the operators below it a cast copy of the weight, which has no kernel.
template <c10::DeviceType device, auto* op>
constexpr auto cast =
    &at::autocast::WrapFunction<at::autocast::CastPolicy::lower_precision_fp, device,
                                std::remove_pointer_t<decltype(op)>,
                                std::remove_pointer_t<decltype(op)>, op>::type::call;

template <c10::DeviceType device>
void register_under_autocast() {
  torch::Library& m =
      library("aten", at::autocast::get_autocast_dispatch_key_from_device_type(device));
  m.impl("linear", &Checked<WeightOperator::Product, cast<device, &ATEN_FN(linear)>>::call);
  m.impl("conv1d", convolution<cast<device, &ATEN_FN(conv1d)>>);
  m.impl("conv2d", convolution<cast<device, &ATEN_FN(conv2d)>>);
  m.impl("conv3d", convolution<cast<device, &ATEN_FN(conv3d)>>);
  m.impl("conv_transpose1d", convolution<cast<device, &ATEN_FN(conv_transpose1d)>>);
  m.impl("conv_transpose2d.input", convolution<cast<device, &ATEN_FN2(conv_transpose2d, input)>>);
  m.impl("conv_transpose3d.input", convolution<cast<device, &ATEN_FN2(conv_transpose3d, input)>>);
}

void register_replacements() {
  SilentWarnings silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  torch::Library& implicit = library("aten", DispatchKey::CompositeImplicitAutograd);
  implicit.impl("linear", &Checked<WeightOperator::Product, &at::native::linear>::call);
  implicit.impl("conv1d", convolution<&at::native::conv1d_symint>);
  implicit.impl("conv2d", convolution<&at::native::conv2d_symint>);
  implicit.impl("conv3d", convolution<&at::native::conv3d_symint>);
  implicit.impl("conv1d.padding", convolution<&at::native::conv1d_padding_symint>);
  implicit.impl("conv2d.padding", convolution<&at::native::conv2d_padding_symint>);
  implicit.impl("conv3d.padding", convolution<&at::native::conv3d_padding_symint>);
  implicit.impl("conv_transpose1d", convolution<&at::native::conv_transpose1d_symint>);
  implicit.impl("conv_transpose2d.input", convolution<&at::native::conv_transpose2d_symint>);
  implicit.impl("conv_transpose3d.input", convolution<&at::native::conv_transpose3d_symint>);
  register_under_autocast<c10::DeviceType::CPU>();
  // These are in the list of the CPU alone.
  constexpr auto cpu = c10::DeviceType::CPU;
  torch::Library& on_cpu = library("aten", DispatchKey::AutocastCPU);
  on_cpu.impl("conv1d.padding", convolution<cast<cpu, &ATEN_FN2(conv1d, padding)>>);
  on_cpu.impl("conv2d.padding", convolution<cast<cpu, &ATEN_FN2(conv2d, padding)>>);
  on_cpu.impl("conv3d.padding", convolution<cast<cpu, &ATEN_FN2(conv3d, padding)>>);
  register_under_autocast<c10::DeviceType::CUDA>();
  register_under_autocast<c10::DeviceType::PrivateUse1>();
  library("_", transposed_key).fallback(torch::CppFunction::makeFallthrough());
  torch::Library& of_transposed = library("aten", transposed_key);
  of_transposed.impl("addmm", addmm);
  of_transposed.impl("matmul", matmul);
  for (const auto key :
       {DispatchKey::AutogradCPU, DispatchKey::AutogradCUDA, DispatchKey::AutogradPrivateUse1})
    library("aten", key).impl("embedding", embedding_with_gradient);
  torch::Library& below_autograd = library("aten", DispatchKey::CompositeExplicitAutograd);
  below_autograd.impl("embedding", embedding);
  below_autograd.impl("t", transposed);
}

}  // namespace

void set_weight_kernel(const at::Tensor& weight, WeightOperator of,
                       std::shared_ptr<WeightKernel> kernel) {
  static std::once_flag once;
  std::call_once(once, register_replacements);
  attached(weight).kernels[static_cast<std::size_t>(of)] = std::move(kernel);
}

std::shared_ptr<WeightKernel> weight_kernel(const at::Tensor& weight, WeightOperator of) {
  Attached* const found = attached_to(weight);
  return found == nullptr ? nullptr : found->kernels[static_cast<std::size_t>(of)];
}

void copy_weight_kernels(const at::Tensor& from, const at::Tensor& to) {
  Attached* const known = attached_to(from);
  if (known == nullptr) return;
  Attached& own = attached(to);
  for (std::size_t i = 0; i < own.kernels.size(); ++i)
    if (own.kernels[i] == nullptr) own.kernels[i] = known->kernels[i];
  own.is_slice = own.is_slice || known->is_slice;
  if (own.name_of_whole.empty()) own.name_of_whole = known->name_of_whole;
}

void mark_as_slice(const at::Tensor& tensor) { attached(tensor).is_slice = true; }

void mark_as_whole(const at::Tensor& tensor, std::string name) {
  attached(tensor).name_of_whole = std::move(name);
}

bool is_slice(const at::Tensor& tensor) {
  Attached* const found = attached_to(tensor);
  return found != nullptr && found->is_slice;
}

std::string name_of_whole(const at::Tensor& tensor) {
  Attached* const found = attached_to(tensor);
  return found == nullptr ? "" : found->name_of_whole;
}

}  // namespace trestle::device
