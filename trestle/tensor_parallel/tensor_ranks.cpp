#include "trestle/tensor_parallel/tensor_ranks.h"

#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::tensor_parallel {

TensorRanks::TensorRanks(comm::Group group) : group_(std::move(group)) {
  if (!group_.valid()) throw UsageError("tensor ranks need a group that contains this rank");
  rank_ = group_.rank();
  size_ = group_.size();
}

TensorRanks::TensorRanks(const DeviceMesh& mesh, std::string_view dimension) {
  if (mesh.layout().has(dimension)) *this = TensorRanks(mesh.group(dimension));
}

TensorRanks TensorRanks::on_paper(int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size)
    throw UsageError(text("there is no tensor rank ", rank, " of ", size));
  TensorRanks ranks;
  ranks.rank_ = rank;
  ranks.size_ = size;
  return ranks;
}

TensorRanks TensorRanks::of(std::string layer) const {
  TensorRanks named = *this;
  named.layer_ = std::move(layer);
  return named;
}

Traffic TensorRanks::traffic() const {
  const std::scoped_lock lock(shared_->counting);
  return shared_->traffic;
}

LoggedMessage TensorRanks::count(MessageKind kind, Bytes bytes) const {
  LoggedMessage message{.kind = kind, .bytes = bytes};
  if (log()->runs()) message.begin = MessageLog::now();
  if (alone() || shared_->scopes > 0) return message;
  const std::scoped_lock lock(shared_->counting);
  shared_->traffic.of(kind) += {.calls = 1, .bytes = bytes};
  return message;
}

}  // namespace trestle::tensor_parallel
