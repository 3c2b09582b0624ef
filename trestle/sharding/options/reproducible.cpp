#include "trestle/sharding/options/reproducible.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::sharding {
namespace {

constexpr int whole_bits = 29;  // of a term in one integer; the next 32 bits are in another
constexpr std::int64_t limit = std::int64_t{1} << 32;

struct WholeSum {
  std::int64_t high = 0, low = 0;  // in units of 2^-29 and 2^-61

  // `term`: from 0 to 1.
  void add(double term) {
    const double scaled = term * (1 << whole_bits);
    const auto whole = static_cast<std::int64_t>(scaled);
    high += whole;
    low += static_cast<std::int64_t>((scaled - static_cast<double>(whole)) * limit);
  }
  void carry() {
    high += low / limit;
    low %= limit;
  }
  double value() const {
    return std::ldexp(static_cast<double>(high), -whole_bits) +
           std::ldexp(static_cast<double>(low), -whole_bits - 32);
  }
};

// Calls function(values, count) with the absolute values of all gradients, in chunks that fit a
// cache.
template <class Function>
void for_absolute(const std::vector<at::Tensor>& parameters, const Function& function) {
  constexpr std::int64_t chunk = 1 << 14;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined() || parameter.numel() == 0) continue;
    const at::Tensor flat = parameter.grad().reshape(-1);
    for (std::int64_t begin = 0; begin < flat.numel(); begin += chunk) {
      const at::Tensor some = flat.narrow(0, begin, std::min(chunk, flat.numel() - begin))
                                  .cpu()
                                  .abs()
                                  .to(at::kDouble)
                                  .contiguous();
      function(some.const_data_ptr<double>(), some.numel());
    }
  }
}

double largest(const std::vector<at::Tensor>& parameters, const comm::Group& group) {
  double most = 0;
  for_absolute(parameters, [&](const double* values, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      if (!(values[i] <= most)) most = std::isnan(most) ? most : values[i];
  });
  if (!group.valid()) return most;
  const at::Tensor all = at::full({1}, most, at::kDouble);  // a maximum with NaN is NaN
  group.all_reduce(all, comm::Reduce::Max).wait();
  return all.item<double>();
}

}  // namespace

void check_reproducible(const ShardOptions& options, const RankGroups& ranks) {
  const int micro_batches = options.reproducible.micro_batches, size = ranks.all.size();
  if (micro_batches == 0) return;
  if (micro_batches < 0 || !std::has_single_bit(static_cast<unsigned>(micro_batches)))
    throw UsageError(text("ShardOptions::reproducible with ", micro_batches, " micro-batches"),
                     {.hint = "The number must be a power of two."});
  if (micro_batches % size != 0)
    throw UsageError(text(micro_batches, " micro-batches cannot be divided over ", size, " ranks"),
                     {.hint = "Reproducible training needs 1, 2, 4 ... ranks, at most the number "
                              "of micro-batches."});
  if (options.reproducible.threads < 1)
    throw UsageError(
        text("ShardOptions::reproducible with ", options.reproducible.threads, " threads"),
        {.hint = "It is the number of threads of each rank: at least 1."});
  if (!ranks.replicate.valid()) return;
  // Sums over `shard` come first: its ranks must hold neighbouring micro-batches.
  const auto& shard = ranks.shard.ranks();
  const auto& all = ranks.all.ranks();
  const auto at = std::find(all.begin(), all.end(), shard.front());
  if (all.end() - at >= static_cast<std::ptrdiff_t>(shard.size()) &&
      std::equal(shard.begin(), shard.end(), at))
    return;
  throw UsageError(text("the mesh ", ranks.mesh, " does not add up neighbours first"),
                   {.hint = text("Name the dimension '", options.mesh.replicate, "' before '",
                                 options.mesh.shard, "'.")});
}

void check_reproducible_device(at::Device device) {
  if (!device.is_cuda()) return;
  throw UsageError("ShardOptions::reproducible for a model on a GPU",
                   {.hint = "NCCL chooses its own order of sums: leave the option out."});
}

void check_threads(const Reproducible& wanted) {
  if (wanted.micro_batches == 0 || at::get_num_threads() == wanted.threads) return;
  throw StateError(
      text("this rank computes with ", at::get_num_threads(),
           " threads, but ShardOptions::reproducible.threads is ", wanted.threads),
      {.hint = "Call at::set_num_threads() on each rank, pass the number to spawn(), or set "
               "OMP_NUM_THREADS."});
}

at::Tensor aligned(const at::Tensor& tensor) {
  constexpr std::uintptr_t line = 64;
  if (!tensor.defined() || tensor.layout() != at::kStrided ||
      reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % line == 0)
    return tensor;
  return tensor.clone();
}

double exact_norm(const std::vector<at::Tensor>& parameters, const comm::Group& group, double p) {
  const at::NoGradGuard no_grad;
  const double most = largest(parameters, group);
  if (std::isinf(p) || most == 0 || !std::isfinite(most)) return most;
  int exponent = 0;
  std::frexp(most, &exponent);
  // Scales by powers of two, which loses no digit. By two of them, because one may be out of range.
  const double scale = std::ldexp(1.0, -exponent / 2);
  const double rest = std::ldexp(1.0, -exponent - -exponent / 2);
  WholeSum sum;
  for_absolute(parameters, [&](const double* values, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const double part = values[i] * scale * rest;
      sum.add(p == 2 ? part * part : p == 1 ? part : std::pow(part, p));
    }
    sum.carry();
  });
  if (group.valid()) {
    const at::Tensor all = at::empty({2}, at::kLong);
    auto* numbers = all.mutable_data_ptr<std::int64_t>();
    numbers[0] = sum.high;
    numbers[1] = sum.low;
    group.all_reduce(all).wait();
    sum = {.high = numbers[0], .low = numbers[1]};
  }
  sum.carry();
  return std::ldexp(p == 2 ? std::sqrt(sum.value()) : std::pow(sum.value(), 1 / p), exponent);
}

}  // namespace trestle::sharding
