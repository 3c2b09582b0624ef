#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/sharding/communication_hook.h"

// Gradients averaged over ranks with less to send: each weight's gradient, as a matrix M, is sent
// as two thin ones, P and Q, with M = P * transposed(Q) nearly (PowerSGD: Vogels, Karimireddy and
// Jaggi, https://arxiv.org/abs/1905.13727). The names, defaults and numbers are those of PyTorch's
// powerSGD_hook.
namespace trestle::sharding {

struct PowerSgdOptions {
  std::int64_t approximation_rank = 1;  // columns of P and Q
  std::int64_t start_iteration = 1000;  // before it, plain averages
  // A gradient of n rows and m columns is compressed where this is less than n * m / ((n + m) *
  // rank).
  double min_compression_rate = 2;
  bool error_feedback = true;  // what was lost is added to the next gradient; one more copy of it
  bool warm_start = true;      // begins with the last step's Q, which is kept, not with a drawn one
  double orthogonalization_epsilon = 0;  // added to columns' norms
  std::uint32_t seed = 0;                // of the drawn Q
};

// One rank's part. All ranks of the group make the same calls in the same order.
//
//   PowerSgd powersgd(world.group(), {.approximation_rank = 2, .start_iteration = 10});
//   for (auto& [input, target] : batches) {
//     loss_of(input, target).backward();
//     powersgd.average(0, buffer, gradients);
//     powersgd.end_step();
//     optimizer.step();
//   }
//
// A column that is zero, as where a layer got no gradient, stays zero; PyTorch's becomes NaN unless
// epsilon is more than 0.
class PowerSgd {
 public:
  // Throws UsageError for options that cannot be.
  explicit PowerSgd(comm::Group group, const PowerSgdOptions& options = {});
  ~PowerSgd();
  PowerSgd(PowerSgd&&) noexcept;

  // `buffer` is one piece of memory, `gradients` are the parts of it, one for each parameter, in
  // their shapes: afterwards they have the ranks' average. What was lost, and Q, is kept under the
  // number `bucket`. Waits. Throws UsageError where the gradients are not the buffer's parts or the
  // ranks' options differ, StateError for a bucket that has got another size since compression
  // began.
  void average(int bucket, const at::Tensor& buffer, const std::vector<at::Tensor>& gradients);
  // The same in two halves, for what is computed meanwhile: the call sends P and what is not
  // compressed, and the function that it returns waits, and sends Q. All ranks end buckets in the
  // order in which they began them. `buffer` may have gaps between the gradients.
  std::function<void()> begin_average(int bucket, const at::Tensor& buffer,
                                      const std::vector<at::Tensor>& gradients);

  // After the last bucket of a step.
  void end_step() { ++iteration_; }
  std::int64_t iteration() const { return iteration_; }

  // Numbers that this rank had to average since compression began, and how many of them were sent.
  std::int64_t numbers_before() const { return before_; }
  std::int64_t numbers_sent() const { return sent_; }

 private:
  struct Bucket;
  struct Parts;
  class Seeds;
  Parts take_apart(const std::vector<at::Tensor>& gradients);
  void prepare_factors(Bucket& bucket, const Parts& parts, const at::Tensor& buffer);
  comm::Work send_p(Bucket& bucket, const Parts& parts, const at::Tensor& buffer);
  void send_q(Bucket& bucket, const Parts& parts);
  Bucket& bucket_of(int number, const at::Tensor& buffer);
  void check_ranks();

  comm::Group group_;
  PowerSgdOptions options_;
  std::map<int, Bucket> buckets_;
  std::unique_ptr<Seeds> seeds_;
  std::int64_t iteration_ = 0, before_ = 0, sent_ = 0;
  bool ranks_agree_ = false;
};

// PowerSGD for the buckets of a Sharded of level None. It counts reduced backwards, and begins
// compression after start_iteration of them: at least 1, because buckets are divided anew before
// the second step (PyTorch asks for 2). What it keeps is in no checkpoint: a training that goes on
// from one begins with plain averages again.
//
//   const auto hook = powersgd_hook({.approximation_rank = 2, .start_iteration = 10});
//   trestle::Sharded sharded(net, mesh, {.buckets = {.hook = hook}});
//
// Throws UsageError for options that cannot be, and for parameters that are complex numbers in the
// first backward.
CommunicationHook powersgd_hook(const PowerSgdOptions& options = {});

}  // namespace trestle::sharding
