#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "trestle/comm/group.h"
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
  bool exist() const { return group_.valid() && *scopes_ == 0; }
  const comm::Group& group() const { return group_; }

  // This rank's part of `whole` indices: nn::even_range().
  nn::IndexRange own(std::int64_t whole) const { return nn::even_range(whole, size_, rank_); }

  // As long as it lives, this rank's layers send nothing, as on paper: to measure them. It holds
  // for all copies of these ranks, in all threads.
  class AloneScope {
   public:
    explicit AloneScope(const TensorRanks& ranks) : scopes_(ranks.scopes_) { ++*scopes_; }
    ~AloneScope() { --*scopes_; }
    AloneScope(const AloneScope&) = delete;
    AloneScope& operator=(const AloneScope&) = delete;

   private:
    std::shared_ptr<std::atomic<int>> scopes_;
  };

  // The same ranks with the name of what they split, such as "blocks.3.mlp.down", for messages.
  TensorRanks of(std::string layer) const;
  const std::string& layer() const { return layer_; }

 private:
  comm::Group group_;
  int rank_ = 0;
  int size_ = 1;
  std::string layer_;
  std::shared_ptr<std::atomic<int>> scopes_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace trestle::tensor_parallel
