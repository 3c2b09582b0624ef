#include "trestle/device/virtual/host_view.h"

#include <c10/util/Exception.h>

#include "trestle/device/virtual/allocator.h"

namespace trestle::virt {
namespace {

// A tensor over `storage` with the sizes, strides and flags of `like`.
at::Tensor rewrapped(c10::Storage storage, c10::DispatchKeySet keys, const at::Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_complex()) impl->_set_conj(like.is_conj());
  if (like.is_neg()) impl->_set_neg(true);
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return tensor;
}

void drop_reference(void* storage) {
  c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(storage));
}

}  // namespace

const c10::Storage& HostView::host_storage(c10::StorageImpl* device_storage) {
  for (const Storage& known : storages_) {
    if (known.device == device_storage) return known.host;
  }
  c10::raw::intrusive_ptr::incref(device_storage);  // the alias keeps the memory alive
  c10::DataPtr memory(untagged(device_storage->data()), device_storage, &drop_reference,
                      c10::Device(c10::DeviceType::CPU));
  c10::Storage host(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), device_storage->nbytes(), std::move(memory),
      cpu_allocator(), /*resizable=*/true));
  storages_.push_back({device_storage, std::move(host)});
  return storages_.back().host;
}

at::Tensor HostView::to_host(const at::Tensor& tensor, Access access) {
  if (!tensor.defined()) return tensor;
  if (!is_virtual(tensor.device())) {
    if (tensor.has_storage()) host_arguments_.push_back(tensor.storage().unsafeGetStorageImpl());
    return tensor;
  }
  for (Argument& known : arguments_) {
    if (!known.device.is_same(tensor)) continue;
    if (access == Access::write) known.access = access;
    return known.handed_over;
  }
  TORCH_CHECK(tensor.layout() == at::kStrided, "virtual devices hold dense tensors only, not ",
              tensor.layout());
  at::Tensor host =
      rewrapped(host_storage(tensor.storage().unsafeGetStorageImpl()), cpu_keys, tensor);
  arguments_.push_back({tensor, host, host.unsafeGetTensorImpl(), access});
  return host;
}

void HostView::write_back() {
  for (const Argument& argument : arguments_) {
    if (argument.access != Access::write) continue;
    auto* device = argument.device.unsafeGetTensorImpl();
    const c10::TensorImpl* host = argument.host;
    if (device->sizes() == host->sizes() && device->strides() == host->strides() &&
        device->storage_offset() == host->storage_offset()) {
      continue;
    }
    device->set_sizes_and_strides(host->sizes(), host->strides(), host->storage_offset());
  }
  for (Storage& storage : storages_) {
    auto* host = storage.host.unsafeGetStorageImpl();
    if (host->data() == untagged(storage.device->data()) &&
        host->nbytes() == storage.device->nbytes())
      continue;
    const std::size_t bytes = host->nbytes();  // the kernel gave the storage new memory
    const int device = storage.device->device().index();
    storage.device->set_data_ptr_noswap(
        lifted(std::move(host->_mutable_data_ptr_no_checks()), device));
    storage.device->set_nbytes(bytes);
  }
}

std::vector<BlockAccess> HostView::accesses() const {
  std::vector<BlockAccess> result;
  for (const Argument& argument : arguments_) {
    const void* block = untagged(argument.device.storage().data());
    result.push_back({block, argument.access == Access::write});
  }
  return result;
}

// Empty if the result lies in a CPU tensor that the caller passed.
c10::Storage HostView::device_storage(const at::Tensor& result) {
  auto* host = result.storage().unsafeGetStorageImpl();
  for (const Storage& known : storages_) {
    if (known.host.unsafeGetStorageImpl() != host) continue;
    return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(known.device));
  }
  for (const c10::StorageImpl* passed : host_arguments_) {
    if (passed == host) return {};
  }
  auto& memory = host->_mutable_data_ptr_no_checks();
  if (memory.device().is_cpu()) {  // else another result of this call shares it and was lifted
    memory = lifted(std::move(memory), device_);
    host->set_allocator(device_allocator(device_));
  }
  return result.storage();
}

at::Tensor HostView::to_device(const at::Tensor& result) {
  if (!result.defined()) return result;
  for (const Argument& argument : arguments_) {
    if (argument.host == result.unsafeGetTensorImpl()) return argument.device;
  }
  if (!result.is_cpu()) return result;
  TORCH_CHECK(result.layout() == at::kStrided && result.has_storage(),
              "virtual devices hold dense tensors only, and this operator made a ", result.layout(),
              " one");
  c10::Storage storage = device_storage(result);
  return storage ? rewrapped(std::move(storage), device_keys, result) : result;
}

}  // namespace trestle::virt
