#include "trestle/device/keyed_random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <mutex>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/device.h"
#include "trestle/device/keyed_generator.h"
#include "trestle/device/random_draw.h"
#include "trestle/device/virtual/allocator.h"
#include "trestle/device/virtual/backend.h"

// CPU kernels without a given generator use the process's default one, which threads share. While a
// scope for the CPU (or a RandomTape's) is open, this thread's calls pass through a dispatch key
// above all others (a mode key that libtorch leaves free). There, operators that take a generator
// are given the thread's own one. All other operators fall through that key at no cost. Virtual
// devices set the generator in their fallback.
namespace trestle {

struct KeyedScope {
  at::Device device;
  std::uint64_t seed;
  KeyedScope* outer;
  at::Generator generator = {};  // for cpu and virtual devices, from the first draw on
  std::optional<c10::impl::IncludeDispatchKeyGuard> mode = {};
  at::Tensor state_before = {};  // cuda only
};

namespace {

constexpr auto mode_key = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local KeyedScope* innermost_scope = nullptr;

std::optional<std::size_t> generator_argument(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto type = arguments[i].type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (type->kind() == c10::TypeKind::GeneratorType) return i;
  }
  return std::nullopt;
}

// Operators that create their own tensor fill it with another random operator, which passes through
// here again. So an operator without tensors needs nothing.
void give_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  const auto arguments = stack->end() - static_cast<std::ptrdiff_t>(count);
  bool on_cpu = false;
  for (auto value = arguments; value != stack->end(); ++value) {
    if (value->isTensor() && value->toTensor().defined() && value->toTensor().is_cpu())
      on_cpu = true;
  }
  std::optional<RandomDraw> draw;
  if (on_cpu) {
    auto& slot = *(arguments + static_cast<std::ptrdiff_t>(*generator_argument(op.schema())));
    // A tape treats the default generator the same, given or not.
    if (slot.isNone() ||
        (RandomDraw::is_taped() && slot.toGenerator() == at::detail::getDefaultCPUGenerator())) {
      const int owner = virt::charged();  // inside a virtual device's kernel, the device whose
                                          // memory this really is
      const at::Device device =
          owner == virt::no_device ? at::Device(at::kCPU) : virt::nth_device(owner);
      auto keyed = slot.isNone() ? keyed_generator(device) : std::nullopt;
      if (RandomDraw::is_taped()) {
        draw.emplace(keyed ? *keyed : at::detail::getDefaultCPUGenerator(),
                     keyed ? RandomDraw::Source::OfThread : RandomDraw::Source::Shared);
        keyed = draw->generator();
      }
      if (keyed) slot = *std::move(keyed);
    }
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, mode_key), stack);
}

void register_mode() {
  // Kept for the life of the process: unregistering would race with threads that are still running.
  static auto* libraries = new std::vector<torch::Library>;
  libraries->reserve(2);
  auto& fallback = libraries->emplace_back(torch::Library::IMPL, "_", mode_key, __FILE__, __LINE__);
  fallback.fallback(torch::CppFunction::makeFallthrough());
  auto& aten = libraries->emplace_back(torch::Library::IMPL, "aten", mode_key, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !generator_argument(op->schema())) continue;
    aten.impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&give_generator>());
  }
}

at::Device with_index(at::Device device) {
  if (device.is_cpu()) return at::kCPU;
  return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

}  // namespace

void prepare_keyed_random() {
  static std::once_flag once;
  std::call_once(once, register_mode);
}

c10::impl::IncludeDispatchKeyGuard intercept_random_operators() {
  prepare_keyed_random();
  return c10::impl::IncludeDispatchKeyGuard(mode_key);
}

std::optional<at::Generator> keyed_generator(at::Device device) {
  for (KeyedScope* scope = innermost_scope; scope; scope = scope->outer) {
    if (scope->device != device && !device.is_cpu()) continue;  // every scope keys the CPU too
    if (!scope->generator.defined()) scope->generator = at::detail::createCPUGenerator(scope->seed);
    return scope->generator;
  }
  return std::nullopt;
}

KeyedRandom::KeyedRandom(at::Device device, std::uint64_t seed)
    : scope_(new KeyedScope{.device = with_index(device), .seed = seed, .outer = innermost_scope}) {
  prepare_keyed_random();
  scope_->mode.emplace(mode_key);
  if (!device.is_cpu() && !virt::is_virtual(device)) {
    auto generator = at::globalContext().defaultGenerator(scope_->device);
    const std::lock_guard lock(generator.mutex());
    scope_->state_before = generator.get_state();
    generator.set_current_seed(seed);
  }
  innermost_scope = scope_.get();
}

KeyedRandom::~KeyedRandom() {
  innermost_scope = scope_->outer;
  if (scope_->state_before.defined()) {
    auto generator = at::globalContext().defaultGenerator(scope_->device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(scope_->state_before);
  }
}

}  // namespace trestle
