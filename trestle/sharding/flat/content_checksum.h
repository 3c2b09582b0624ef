#pragma once

#include <ATen/core/Tensor.h>

namespace trestle::sharding {

// A checksum of the bytes of `flat`, which is contiguous, as a scalar tensor on its device. It
// finds writes through data(), as torch's optimizers make them, which leave the tensor's version as
// it was.
at::Tensor content_checksum(const at::Tensor& flat);

}  // namespace trestle::sharding
