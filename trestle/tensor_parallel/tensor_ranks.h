#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "trestle/base/traffic.h"
#include "trestle/comm/group.h"
#include "trestle/comm/message_log.h"
#include "trestle/mesh/device_mesh.h"
#include "trestle/nn/parameter_slice.h"

namespace trestle::tensor_parallel {

// The ranks that split layers among them, and this rank's place. All of them get the same batches
// and run the same layers in the same order. Copies share the group.
//
//   trestle::DeviceMesh mesh(world, {{"replicate", 2}, {"tensor", 4}});
//   const trestle::tensor_parallel::TensorRanks ranks(mesh);   // of the dimension "tensor"
//   ranks.own(50257);   // rank 1 of 4: {.begin = 12565, .size = 12564}
//
// One rank alone sends nothing and computes what the unsplit layers compute.
class TensorRanks {
  struct Shared {
    std::atomic<int> scopes = 0;  // AloneScopes that live
    std::mutex counting;
    Traffic traffic;
    std::shared_ptr<MessageLog> log = std::make_shared<MessageLog>();
  };

 public:
  TensorRanks() = default;  // one rank alone
  // The ranks of a group, which are all ranks that split the layers. Throws UsageError for a group
  // that is not valid().
  explicit TensorRanks(comm::Group group);
  // The ranks of a mesh's dimension. A mesh without it has one rank alone.
  explicit TensorRanks(const DeviceMesh& mesh, std::string_view dimension = "tensor");
  // Rank `rank` of `size` ranks that do not exist, to measure the layers of one rank. Nothing is
  // sent: sums lack the other ranks' terms, and what other ranks would send is this rank's own.
  static TensorRanks on_paper(int rank, int size);

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool alone() const { return size_ == 1; }
  // Whether messages are sent: not on paper, not by one rank alone, and not in an AloneScope.
  bool exist() const { return group_.valid() && shared_->scopes == 0; }
  const comm::Group& group() const { return group_; }

  // This rank's part of `whole` indices: nn::even_range().
  nn::IndexRange own(std::int64_t whole) const { return nn::even_range(whole, size_, rank_); }

  // As long as it lives, this rank's layers send nothing, as on paper: to measure them. It holds
  // for all copies of these ranks, in all threads.
  class AloneScope {
   public:
    explicit AloneScope(const TensorRanks& ranks) : shared_(ranks.shared_) { ++shared_->scopes; }
    ~AloneScope() { --shared_->scopes; }
    AloneScope(const AloneScope&) = delete;
    AloneScope& operator=(const AloneScope&) = delete;

   private:
    std::shared_ptr<Shared> shared_;
  };

  // The messages of all copies of these ranks so far, on this rank: activations, their gradients,
  // and those gradients of whole parameters that each rank computes a term of. Ranks on paper count
  // what ranks that exist would exchange. Shards that differ by one index travel with a padded
  // index, which is counted. An AloneScope counts nothing.
  //
  //   const Traffic before = ranks.traffic();
  //   net.forward(ids).sum().backward();
  //   const Traffic step = ranks.traffic() - before;   // step.all_reduce.bytes
  Traffic traffic() const;

  // The same ranks with the name of what they split, such as "blocks.3.mlp.down", for messages.
  TensorRanks of(std::string layer) const;
  const std::string& layer() const { return layer_; }

  // The times of the messages, while it runs. Messages on paper and in an AloneScope are logged
  // too: their end is their wait.
  const std::shared_ptr<MessageLog>& log() const { return shared_->log; }

  // Counts a collective of tensor_parallel's own, which begins now.
  LoggedMessage count(MessageKind kind, Bytes bytes) const;

 private:
  comm::Group group_;
  int rank_ = 0;
  int size_ = 1;
  std::string layer_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace trestle::tensor_parallel
