// Operations made of several collectives: gathering tensors of unequal size, and bytes.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "trestle/base/text.h"
#include "trestle/comm/fingerprint.h"
#include "trestle/comm/group_impl.h"
#include "trestle/comm/rank_error.h"
#include "trestle/comm/request.h"

namespace trestle::comm {
namespace {

at::Tensor bytes_tensor(std::int64_t size) {
  return at::empty({size}, at::TensorOptions().dtype(at::kByte));
}

at::Tensor tensor_of(const void* data, std::size_t size) {
  at::Tensor tensor = bytes_tensor(static_cast<std::int64_t>(size));
  if (size > 0) std::memcpy(tensor.mutable_data_ptr(), data, size);
  return tensor;
}

std::string string_of(const at::Tensor& tensor, std::int64_t size) {
  return {static_cast<const char*>(tensor.const_data_ptr()), static_cast<std::size_t>(size)};
}

// Gathers every rank's fingerprint of its input.
std::vector<Fingerprint> gather_prints(const Group& group, const at::Tensor& input) {
  const Fingerprint own = fingerprint_of(input);
  const std::int64_t size = sizeof own;
  at::Tensor all = bytes_tensor(size * group.size());
  group.all_gather(all, tensor_of(&own, sizeof own)).wait();
  std::vector<Fingerprint> prints(static_cast<std::size_t>(group.size()));
  std::memcpy(prints.data(), all.const_data_ptr(), all.nbytes());
  return prints;
}

}  // namespace

std::vector<at::Tensor> Group::all_gather_uneven(const at::Tensor& input) const {
  check_rows("all_gather_uneven", input);
  const std::vector<Fingerprint> prints = gather_prints(*this, input);
  std::vector<Fingerprint> comparable = prints;
  for (Fingerprint& print : comparable) {
    print.kind = Kind::AllGather;
    print.sizes[0] = -1;
    print.strides = {};
  }
  if (const auto differs = difference(comparable, ranks())) {
    impl_->place().control->fail(*differs);
    throw RankError(*differs);
  }
  std::int64_t most = 0;
  for (const Fingerprint& print : prints) most = std::max(most, print.sizes[0]);
  auto padded_sizes = input.sizes().vec();
  padded_sizes[0] = most;
  at::Tensor padded = at::zeros(padded_sizes, input.options());
  padded.narrow(0, 0, input.size(0)).copy_(input.detach());
  padded_sizes.insert(padded_sizes.begin(), size());
  at::Tensor gathered = at::empty(padded_sizes, input.options());
  all_gather(gathered, padded).wait();
  std::vector<at::Tensor> pieces;
  for (int r = 0; r < size(); ++r)
    pieces.push_back(
        gathered[r].narrow(0, 0, prints[static_cast<std::size_t>(r)].sizes[0]).clone());
  return pieces;
}

std::string Group::broadcast_bytes(std::string bytes, int from) const {
  auto size = static_cast<std::int64_t>(bytes.size());
  at::Tensor length = tensor_of(&size, sizeof size);
  broadcast(length, from).wait();
  std::memcpy(&size, length.const_data_ptr(), sizeof size);
  at::Tensor content = rank() == from ? tensor_of(bytes.data(), bytes.size()) : bytes_tensor(size);
  broadcast(content, from).wait();
  return string_of(content, size);
}

std::vector<std::string> Group::all_gather_bytes(const std::string& bytes) const {
  std::vector<std::string> all;
  for (const at::Tensor& piece : all_gather_uneven(tensor_of(bytes.data(), bytes.size())))
    all.push_back(string_of(piece, piece.numel()));
  return all;
}

}  // namespace trestle::comm
