#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/sharding/hooks/communication_hook.h"

// Averages gradients over ranks with less communication (PowerSGD: Vogels, Karimireddy and Jaggi,
// https://arxiv.org/abs/1905.13727). Each weight's gradient, as a matrix M, is sent as two thin
// matrices P and Q, where M is nearly P * transposed(Q). Names, defaults and numbers are those of
// PyTorch's powerSGD_hook.
namespace trestle::sharding {

struct PowerSgdOptions {
  std::int64_t approximation_rank = 1;  // columns of P and Q
  std::int64_t start_iteration = 1000;  // the first step that compresses; before it, plain averages
  // A gradient of n rows and m columns is compressed if n * m / ((n + m) * rank) is larger.
  double min_compression_rate = 2;
  bool error_feedback = true;  // adds the error to the next gradient; costs a copy of all gradients
  bool warm_start = true;      // begins with the last step's Q instead of a random one
  double orthogonalization_epsilon = 0;  // added to the norms of columns
  std::uint32_t seed = 0;                // of the random Q
};

// One rank's side. All ranks of the group make the same calls in the same order.
//
//   PowerSgd powersgd(world.group(), {.approximation_rank = 2, .start_iteration = 10});
//   for (auto& [input, target] : batches) {
//     loss_of(input, target).backward();
//     powersgd.average(0, buffer, gradients);
//     powersgd.end_step();
//     optimizer.step();
//   }
//
// A column of zeros, as where a layer got no gradient, stays zero. PyTorch's becomes NaN unless
// epsilon is greater than 0.
class PowerSgd {
 public:
  // Throws UsageError for invalid options.
  explicit PowerSgd(comm::Group group, const PowerSgdOptions& options = {});
  ~PowerSgd();
  PowerSgd(PowerSgd&&) noexcept;

  // Replaces the gradients by the ranks' average, and waits for it. `gradients` are views of
  // `buffer`, which is contiguous, one for each parameter in its shape. The error and Q are kept
  // under the number `bucket`. Throws UsageError where the gradients are not views of the buffer,
  // or the ranks' options differ. Throws StateError for a bucket whose size changed since
  // compression began.
  // began.
  void average(int bucket, const at::Tensor& buffer, const std::vector<at::Tensor>& gradients);
  // The same in two halves, to compute meanwhile: the call sends P and what is not compressed. The
  // function that it returns waits, and sends Q. All ranks end buckets in the order in which they
  // began them. `buffer` may have gaps between the gradients.
  std::function<void()> begin_average(int bucket, const at::Tensor& buffer,
                                      const std::vector<at::Tensor>& gradients);

  // After the last bucket of a step.
  void end_step() { ++iteration_; }
  std::int64_t iteration() const { return iteration_; }

  // Elements that this rank had to average since compression began, and elements that it sent.
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

// PowerSGD for the buckets of a Sharded of any level. A rank feeds back the errors of its own
// gradients, so it keeps them whole: they cost a copy of all gradients at every level, unless
// error_feedback is off. It counts reduced backwards and begins to
// compress after start_iteration of them: at least 1, because buckets are rebuilt before the second
// step (PyTorch requires 2). A checkpoint does not hold its state: a resumed training begins with
// plain averages again.
//
//   const auto hook = powersgd_hook({.approximation_rank = 2, .start_iteration = 10});
//   trestle::Sharded sharded(net, mesh, {.buckets = {.hook = hook}});
//
// Throws UsageError for invalid options, and in the first backward for complex parameters.
CommunicationHook powersgd_hook(const PowerSgdOptions& options = {});

}  // namespace trestle::sharding
