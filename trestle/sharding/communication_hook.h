#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trestle/comm/group.h"

// What takes the place of the sum over ranks of a bucket's gradients: PyTorch's
// register_comm_hook() and GradBucket.
namespace trestle::sharding {

// The gradients of a bucket as this rank computed them, times its weight in the average where
// weights are given (backward(loss, weight)) over the mean weight: the plain mean over the group's
// ranks is what is wanted, in place.
struct GradientBucket {
  int index = 0;          // in the order in which buckets are reduced, the same on all ranks
  bool is_last = false;   // of this backward
  std::int64_t step = 0;  // reduced backwards before this one
  // All of them in one piece of memory, with zeros between them; and each of them, a part of it in
  // its parameter's shape. Of a parameter that got no gradient (UnusedParameters::Find) it is zero.
  at::Tensor flat;
  std::vector<at::Tensor> gradients;
  std::vector<std::string> names;  // of their parameters
  comm::Group group;               // all ranks that have the model
};

// Called in the backward as soon as a bucket's gradients are there, on all ranks in the same order.
// It begins whatever it sends, and returns what is called, once for each bucket and in the same
// order, when the backward has ended: that waits, and leaves the ranks' average in bucket.flat. It
// may return nothing where the average is there already. Where either throws, the communication of
// all ranks ends with that reason.
using AverageBucket = std::function<std::function<void()>(const GradientBucket& bucket)>;

// ShardOptions::buckets.hook. A hook serves level None, where each rank keeps whole gradients; at
// the other levels gradients are reduced to this rank's piece, and a hook is a UsageError. Buckets
// are divided anew before the second step, in the order in which gradients came, and stay so from
// then on: what a hook keeps for a bucket it keeps from bucket.step 1.
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
// no hooks here but the dtype of reductions, which works at every level: {.precision = {.reduce =
// at::kBFloat16}}. Where both are given, the hook gets its buckets in that dtype.
struct CommunicationHook {
  std::string name = {};  // the same on all ranks, with what must be alike on them
  // Makes what one Sharded calls, which may have state of its own. The group is bucket.group.
  std::function<AverageBucket(const comm::Group& group)> make = {};
};

}  // namespace trestle::sharding
