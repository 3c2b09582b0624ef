#include "trestle/device/virtual/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <vector>

#include "trestle/device/keyed_generator.h"
#include "trestle/device/virtual/allocator.h"
#include "trestle/device/virtual/backend.h"

namespace trestle::virt {
namespace {

class VirtualGenerator final : public c10::GeneratorImpl {
 public:
  explicit VirtualGenerator(int device)
      : c10::GeneratorImpl(nth_device(device), device_keys),
        host_(at::detail::createCPUGenerator()) {}

  const at::Generator& host() const { return host_; }

  void set_current_seed(std::uint64_t seed) override { host_.set_current_seed(seed); }
  std::uint64_t current_seed() const override { return host_.current_seed(); }
  std::uint64_t seed() override { return host_.seed(); }
  void set_offset(std::uint64_t offset) override { host_.set_offset(offset); }
  std::uint64_t get_offset() const override { return host_.get_offset(); }
  void set_state(const c10::TensorImpl& state) override {
    host_.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host_.unsafeGetGeneratorImpl()->get_state();
  }

 private:
  VirtualGenerator* clone_impl() const override {
    auto* copy = new VirtualGenerator(device_.index());
    copy->host_ = host_.clone();
    return copy;
  }

  at::Generator host_;
};

const at::Generator& default_generator(int device) {
  static const auto* generators = [] {
    auto* all = new std::vector<at::Generator>;
    for (int i = 0; i < device_count(); ++i)
      all->push_back(at::make_generator<VirtualGenerator>(i));
    return all;
  }();
  return generators->at(static_cast<std::size_t>(device));
}

// In libtorch's interfaces -1 means the current device.
int named_or_current(c10::DeviceIndex device) { return device < 0 ? current_device() : device; }

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(device_count());
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = getCurrentDevice();
    set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? getCurrentDevice() : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(named_or_current(device));
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<VirtualGenerator>(named_or_current(device));
  }
  // Used by non-blocking copies to the host and by pin_memory(): any host memory will do.
  at::Allocator* getPinnedMemoryAllocator() const override { return cpu_allocator(); }
  bool isPinnedPtr(const void*) const override { return false; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    c10::DataPtr memory = device_allocator(impl->device().index())->allocate(bytes);
    if (const std::size_t common = std::min(bytes, impl->nbytes()); common > 0) {
      std::memcpy(untagged(memory.get()), untagged(impl->data()), common);
    }
    impl->set_data_ptr_noswap(std::move(memory));
    impl->set_nbytes(bytes);
  }
};

}  // namespace

at::Generator host_generator(int device, const at::Generator& given,
                             std::optional<RandomDraw>& draw) {
  const auto host_of = [](const at::Generator& generator) {
    return static_cast<VirtualGenerator*>(generator.unsafeGetGeneratorImpl())->host();
  };
  const bool by_name =
      RandomDraw::is_taped() && given.defined() && given == default_generator(device);
  if (given.defined() && !by_name) return is_virtual(given.device()) ? host_of(given) : given;
  const auto keyed = by_name ? std::nullopt : keyed_generator(nth_device(device));
  const at::Generator source = keyed ? *keyed : host_of(default_generator(device));
  if (!RandomDraw::is_taped()) return source;
  draw.emplace(source, keyed ? RandomDraw::Source::OfThread : RandomDraw::Source::Shared);
  return draw->generator();
}

void install_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks); }

}  // namespace trestle::virt
