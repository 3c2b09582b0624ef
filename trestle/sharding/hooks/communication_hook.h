#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trestle/comm/group.h"

// Replaces the sum over ranks of a bucket's gradients: PyTorch's register_comm_hook() and
// GradBucket.
namespace trestle::sharding {

// The gradients of a bucket as this rank computed them. With weights (backward(loss, weight)) they
// are multiplied by this rank's weight over the mean weight. The hook replaces them by their plain
// mean over the group's ranks, in place.
struct GradientBucket {
  int index = 0;          // in the order of reductions, the same on all ranks
  bool is_last = false;   // of this backward
  std::int64_t step = 0;  // the number of reduced backwards before this one
  // All gradients in one contiguous tensor, with zeros between them, and each as a view of it in
  // its parameter's shape. A parameter without a gradient (UnusedParameters::Find) has zeros.
  at::Tensor flat;
  std::vector<at::Tensor> gradients;
  std::vector<std::string> names;  // of their parameters
  comm::Group group;               // all ranks that hold the model
};

// Called in the backward as soon as a bucket's gradients are complete, on all ranks in the same
// order. It begins its communication and returns a function. That function is called once for each
// bucket, in the same order: it waits, and leaves the ranks' mean in bucket.flat. At level None it
// is called at the end of the backward. At other levels, which free whole gradients, it is called
// when the second next bucket begins. An empty function means that the mean is there already. If
// either throws, the communication of all ranks fails with that reason.
using AverageBucket = std::function<std::function<void()>(const GradientBucket& bucket)>;

// ShardOptions::buckets.hook. It works at every level. Above level None the hook still averages
// whole gradients over all ranks (also over both dimensions of HSDP), and each rank then keeps its
// shard of the result. So a hook replaces the reduce-scatter, and should send less than that, as
// PowerSGD does. At level Parameters each unit is a bucket, and all parameters must be used
// (UnusedParameters::Refuse). At level None buckets are rebuilt once, before the second step, in
// the order in which gradients came. So a hook that keeps state for a bucket begins to do so at
// bucket.step 1.
//
//   const trestle::sharding::CommunicationHook in_two_steps{
//       .name = "in two steps",
//       .make = [](const trestle::comm::Group&) {
//         return [](const trestle::sharding::GradientBucket& bucket) {
//           auto sum = bucket.group.all_reduce(bucket.flat);     // goes on beside the backward
//           return [bucket, sum]() mutable {
//             sum.wait();
//             bucket.flat.div_(bucket.group.size());
//           };
//         };
//       }};
//   trestle::Sharded sharded(net, mesh, {.buckets = {.hook = in_two_steps}});
//
// PowerSGD is powersgd_hook() (powersgd.h). PyTorch's fp16_compress_hook and bf16_compress_hook are
// the dtype of reductions here, which works at every level: {.precision = {.reduce =
// at::kBFloat16}}. If both are set, the hook gets its buckets in that dtype.
struct CommunicationHook {
  std::string name = {};  // must be the same on all ranks; include the hook's options in it
  // Makes the function for one Sharded. It may hold state. The group is bucket.group.
  std::function<AverageBucket(const comm::Group& group)> make = {};
};

}  // namespace trestle::sharding
