#pragma once

#include <ATen/core/Tensor.h>

namespace trestle::sharding {

// A number, as a tensor where `flat` is, that another content of `flat` would not give: for telling whether somebody has
// written to it. Writes through data(), as those of torch's optimizers, leave no version behind. `flat` is contiguous.
at::Tensor content_checksum(const at::Tensor& flat);

}  // namespace trestle::sharding
