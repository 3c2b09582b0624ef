#include "trestle/sharding/hooks/powersgd.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <random>
#include <tuple>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"

namespace trestle::sharding {
namespace {

// A gradient's memory as a matrix. The gradient's first dimension comes first in memory, and the
// other dimensions follow in any order. A transposed matrix has it last.
at::Tensor as_matrix(const at::Tensor& gradient) {
  const std::int64_t rows = gradient.dim() == 0 ? 1 : gradient.size(0);
  const std::int64_t columns = gradient.numel() / std::max<std::int64_t>(rows, 1);
  const bool is_transposed = gradient.dim() == 2 && gradient.stride(0) == 1 && columns > 1;
  return is_transposed ? gradient : gradient.as_strided({rows, columns}, {columns, 1});
}

// Its memory as one row, in any order of dimensions.
at::Tensor as_row(const at::Tensor& gradient) {
  return gradient.as_strided({gradient.numel()}, {1});
}

// Makes the columns of `matrix` orthonormal, in place.
void orthogonalize(at::Tensor matrix, double epsilon) {
  const std::int64_t columns = matrix.size(1);
  const bool is_low = matrix.scalar_type() == at::kHalf || matrix.scalar_type() == at::kBFloat16;
  if (columns > 2 && !is_low) {
    matrix.copy_(std::get<0>(at::linalg_qr(matrix)));
    return;
  }
  for (std::int64_t i = 0; i < columns; ++i) {
    at::Tensor column = matrix.narrow(1, i, 1);
    at::Tensor norm = column.norm();
    norm = epsilon == 0 ? at::where(norm.eq(0), at::ones_like(norm), norm) : norm + epsilon;
    column.div_(norm);
    at::Tensor rest = matrix.narrow(1, i + 1, columns - i - 1);
    if (rest.size(1) > 0) rest.sub_(column.mul(rest).sum(0, /*keepdim=*/true).mul(column));
  }
}

}  // namespace

// The seeds that PyTorch draws: numpy's RandomState(seed).randint(10^9), which takes numbers of 30
// bits of a Mersenne twister until one is small enough.
class PowerSgd::Seeds {
 public:
  explicit Seeds(std::uint32_t seed) : twister_(seed) {}
  std::uint64_t next() {
    for (;;) {
      const std::uint64_t drawn = twister_() & ((1U << 30) - 1);
      if (drawn < 1'000'000'000) return drawn;
    }
  }

 private:
  std::mt19937 twister_;
};

struct PowerSgd::Bucket {
  std::int64_t numbers = -1;  // not known yet
  at::Tensor error;           // of the last step
  at::Tensor p, q;            // all factors of the bucket in one tensor each, for one message
  std::vector<at::Tensor> each_p, each_q;
};

struct PowerSgd::Parts {
  std::vector<at::Tensor> matrices;  // that are compressed
  std::vector<at::Tensor> rest;
};

PowerSgd::PowerSgd(comm::Group group, const PowerSgdOptions& options)
    : group_(std::move(group)), options_(options), seeds_(std::make_unique<Seeds>(options.seed)) {
  if (!group_.valid()) throw UsageError("PowerSGD needs a group that contains this rank");
  if (options.approximation_rank < 1 || options.start_iteration < 0 ||
      !(options.min_compression_rate > 0) || !(options.orthogonalization_epsilon >= 0)) {
    throw UsageError(
        text("PowerSGD with approximation_rank ", options.approximation_rank, ", start_iteration ",
             options.start_iteration, ", min_compression_rate ", options.min_compression_rate,
             ", orthogonalization_epsilon ", options.orthogonalization_epsilon),
        {.hint = "approximation_rank must be at least 1, min_compression_rate greater than 0, the "
                 "other two at least 0."});
  }
}

PowerSgd::~PowerSgd() = default;
PowerSgd::PowerSgd(PowerSgd&&) noexcept = default;

// Once. Different options would give different weights on the ranks.
void PowerSgd::check_ranks() {
  if (ranks_agree_) return;
  const auto differs = comm::find_difference(
      group_, text("approximation_rank ", options_.approximation_rank, ", start_iteration ",
                   options_.start_iteration, ", min_compression_rate ",
                   options_.min_compression_rate, ", error_feedback ", options_.error_feedback,
                   ", warm_start ", options_.warm_start, ", orthogonalization_epsilon ",
                   options_.orthogonalization_epsilon, ", seed ", options_.seed));
  if (differs)
    throw UsageError(
        text("the ranks' options of PowerSGD differ: rank ", group_.ranks().at(0), " has ",
             differs->first, "; rank ", group_.ranks().at(static_cast<std::size_t>(differs->rank)),
             " has ", differs->other),
        {.hint = "Give all ranks the same options."});
  ranks_agree_ = true;
}

PowerSgd::Parts PowerSgd::take_apart(const std::vector<at::Tensor>& gradients) {
  Parts parts;
  for (const at::Tensor& gradient : gradients) {
    const at::Tensor matrix = as_matrix(gradient);
    const std::int64_t n = matrix.size(0), m = matrix.size(1);
    const std::int64_t compressed = (n + m) * std::min({n, m, options_.approximation_rank});
    before_ += n * m;
    const bool is_worth_it = static_cast<double>(compressed) * options_.min_compression_rate <
                             static_cast<double>(n * m);
    sent_ += is_worth_it ? compressed : n * m;
    if (is_worth_it)
      parts.matrices.push_back(matrix);
    else
      parts.rest.push_back(as_row(gradient));
  }
  return parts;
}

// Allocates P and makes the first Q, with orthogonal columns.
void PowerSgd::prepare_factors(Bucket& bucket, const Parts& parts, const at::Tensor& buffer) {
  const bool is_new = !options_.warm_start || !bucket.q.defined();
  if (is_new) {
    const auto lay_out = [&](std::int64_t side, at::Tensor& all, std::vector<at::Tensor>& each) {
      std::vector<std::int64_t> lengths;
      for (const at::Tensor& matrix : parts.matrices)
        lengths.push_back(matrix.size(side) *
                          std::min({matrix.size(0), matrix.size(1), options_.approximation_rank}));
      std::int64_t total = 0;
      for (const std::int64_t length : lengths) total += length;
      all = at::empty({total}, buffer.options());
      each = all.split_with_sizes(lengths);
      for (std::size_t i = 0; i < each.size(); ++i)
        each[i] = each[i].view({parts.matrices[i].size(side), -1});
    };
    lay_out(0, bucket.p, bucket.each_p);
    lay_out(1, bucket.q, bucket.each_q);
    // On the CPU, so that all devices draw the same. The program's generators stay unchanged.
    const at::Generator generator = at::detail::createCPUGenerator(seeds_->next());
    for (at::Tensor& q : bucket.each_q)
      q.copy_(at::randn(q.sizes(), generator, at::TensorOptions().dtype(buffer.dtype())));
  }
  for (at::Tensor& q : bucket.each_q) orthogonalize(q, options_.orthogonalization_epsilon);
}

// Each matrix is replaced by P * transposed(Q), which equals the ranks' average for the best Q.
comm::Work PowerSgd::send_p(Bucket& bucket, const Parts& parts, const at::Tensor& buffer) {
  prepare_factors(bucket, parts, buffer);
  for (std::size_t i = 0; i < parts.matrices.size(); ++i)
    at::mm_out(bucket.each_p[i], parts.matrices[i], bucket.each_q[i]);
  return group_.all_reduce(bucket.p);
}

void PowerSgd::send_q(Bucket& bucket, const Parts& parts) {
  const std::size_t count = parts.matrices.size();
  for (std::size_t i = 0; i < count; ++i) {
    orthogonalize(bucket.each_p[i], options_.orthogonalization_epsilon);
    at::mm_out(bucket.each_q[i], parts.matrices[i].t(), bucket.each_p[i]);
  }
  group_.all_reduce(bucket.q).wait();
  bucket.q.div_(group_.size());
  for (std::size_t i = 0; i < count; ++i)
    parts.matrices[i].copy_(bucket.each_p[i].mm(bucket.each_q[i].t()));
}

namespace {

// Returns the number of elements of all gradients.
std::int64_t check_parts(const at::Tensor& buffer, const std::vector<at::Tensor>& gradients) {
  std::int64_t total = 0;
  for (const at::Tensor& gradient : gradients) {
    total += gradient.numel();
    if (gradient.is_alias_of(buffer) && gradient.is_non_overlapping_and_dense()) continue;
    throw UsageError(text("a gradient of [", join(gradient.sizes(), ", "),
                          "] is not a view of its bucket, or has gaps"));
  }
  if (buffer.is_complex())
    throw UsageError("PowerSGD compresses real numbers, but a bucket holds complex ones");
  return total;
}

}  // namespace

void PowerSgd::average(int number, const at::Tensor& buffer,
                       const std::vector<at::Tensor>& gradients) {
  const std::int64_t total = check_parts(buffer, gradients);
  if (total != buffer.numel() || !buffer.is_contiguous())
    throw UsageError(text("a bucket of ", buffer.numel(), " elements has gradients of ", total));
  begin_average(number, buffer, gradients)();
}

PowerSgd::Bucket& PowerSgd::bucket_of(int number, const at::Tensor& buffer) {
  Bucket& bucket = buckets_[number];
  if (bucket.numbers < 0) bucket.numbers = buffer.numel();
  if (bucket.numbers == buffer.numel()) return bucket;
  throw StateError(text("bucket ", number, " has ", buffer.numel(), " elements, but had ",
                        bucket.numbers, " when PowerSGD began"),
                   {.hint = "Set start_iteration to a step after the last change of the buckets."});
}

std::function<void()> PowerSgd::begin_average(int number, const at::Tensor& buffer,
                                              const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  check_parts(buffer, gradients);
  check_ranks();
  if (iteration_ < options_.start_iteration) {
    return [this, buffer, sum = group_.all_reduce(buffer)]() mutable {
      sum.wait();
      buffer.div_(group_.size());
    };
  }
  Bucket& bucket = bucket_of(number, buffer);
  at::Tensor wanted;
  if (options_.error_feedback) {
    if (bucket.error.defined()) buffer.add_(bucket.error);
    wanted = buffer.clone();
  }
  Parts parts = take_apart(gradients);
  const at::Tensor rest = parts.rest.empty() ? at::Tensor() : at::cat(parts.rest);
  comm::Work rest_sent = rest.defined() ? group_.all_reduce(rest) : comm::Work();
  comm::Work p_sent = parts.matrices.empty() ? comm::Work() : send_p(bucket, parts, buffer);
  return
      [this, &bucket, buffer, wanted, rest, parts = std::move(parts), rest_sent, p_sent]() mutable {
        const at::NoGradGuard no_grad_either;
        p_sent.wait();
        if (!parts.matrices.empty()) send_q(bucket, parts);
        rest_sent.wait();
        std::int64_t begin = 0;
        for (at::Tensor row : parts.rest) {
          row.copy_(rest.narrow(0, begin, row.numel()).div(group_.size()));
          begin += row.numel();
        }
        if (options_.error_feedback) bucket.error = wanted.sub_(buffer);
      };
}

CommunicationHook powersgd_hook(const PowerSgdOptions& options) {
  if (options.start_iteration < 1) {
    throw UsageError(
        text("PowerSGD as a communication hook with start_iteration ", options.start_iteration),
        {.hint = "It must be at least 1: buckets are rebuilt after the first step."});
  }
  const auto make = [options](const comm::Group& group) -> AverageBucket {
    // Without fingerprints: all ranks have the same buckets.
    const auto state = std::make_shared<PowerSgd>(group.with_check(comm::Check::Off), options);
    return [state](const GradientBucket& bucket) -> std::function<void()> {
      return [state, is_last = bucket.is_last,
              end = state->begin_average(bucket.index, bucket.flat, bucket.gradients)] {
        end();
        if (is_last) state->end_step();
      };
    };
  };
  return {.name = text("PowerSGD of rank ", options.approximation_rank, " from iteration ",
                       options.start_iteration),
          .make = make};
}

}  // namespace trestle::sharding
