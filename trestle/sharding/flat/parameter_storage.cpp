#include "trestle/sharding/flat/parameter_storage.h"

#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>

namespace trestle::sharding {

// The number of bytes stays: views check it.
void free_storage(const at::Tensor& tensor, const char* message) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, storage->device()));
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
}

void allocate_storage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const c10::DeviceGuard guard(storage->device());
  storage->clear_data_ptr_access_error_msg_();
  storage->set_data_ptr_noswap(
      c10::GetAllocator(storage->device_type())->allocate(storage->nbytes()));
}

}  // namespace trestle::sharding
