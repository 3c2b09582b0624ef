#include "trestle/sharding/flat/broadcast_tensors.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/comm/purpose.h"
#include "trestle/sharding/flat/buckets.h"

namespace trestle::sharding {
namespace {

// An expanded tensor without the repetitions.
at::Tensor without_repeats(at::Tensor tensor) {
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) tensor = tensor.narrow(dim, 0, 1);
  return tensor;
}

}  // namespace

int kind_of(const at::Tensor& tensor) {
  return (static_cast<int>(tensor.scalar_type()) * 64 + static_cast<int>(tensor.device().type())) *
             256 +
         tensor.device().index() + 1;
}

void broadcast_tensors(const comm::Group& group, const std::vector<at::Tensor>& tensors, int from) {
  if (group.size() == 1 || tensors.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<BucketItem> items;
  std::vector<std::size_t> order;
  for (const at::Tensor& tensor : tensors) {
    order.push_back(order.size());
    items.push_back({.bytes = static_cast<Bytes>(tensor.nbytes()), .kind = kind_of(tensor)});
  }
  constexpr Bytes most = Bytes{4} << 20;  // a copy of a bucket exists while it is sent
  for (const auto& bucket : assign_buckets(items, order, most, most)) {
    std::vector<at::Tensor> rows;
    for (const std::size_t i : bucket)
      rows.push_back(without_repeats(tensors[i].detach()).reshape(-1));
    const at::Tensor flat = at::cat(rows);
    comm::with_purpose(
        [&] {
          return text("in the broadcast of ", bucket.size(), " of ", tensors.size(),
                      " tensors of the model from rank ",
                      group.ranks().at(static_cast<std::size_t>(from)));
        },
        [&] { group.broadcast(flat, from).wait(); });
    if (group.rank() == from) continue;
    std::int64_t begin = 0;
    for (const std::size_t i : bucket) {
      const at::Tensor tensor = without_repeats(tensors[i].variable_data());
      tensor.copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }
}

}  // namespace trestle::sharding
