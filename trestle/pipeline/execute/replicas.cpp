#include "trestle/pipeline/execute/replicas.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "trestle/comm/purpose.h"

namespace trestle::pipeline {
namespace {

// [replica][number]
std::vector<std::vector<double>> gather_numbers(const comm::Group& replicas,
                                                const std::vector<double>& own) {
  const auto count = static_cast<std::int64_t>(own.size());
  const at::Tensor mine = at::tensor(own, at::kDouble);
  const at::Tensor all = at::empty({replicas.size() * count}, at::kDouble);
  comm::with_purpose(
      [] { return "while the replicas compared their shares of the batch and their losses"; },
      [&] { replicas.all_gather(all, mine).wait(); });
  std::vector<std::vector<double>> rows;
  const auto* numbers = all.const_data_ptr<double>();
  for (int replica = 0; replica < replicas.size(); ++replica, numbers += count)
    rows.emplace_back(numbers, numbers + count);
  return rows;
}

}  // namespace

ReplicaShare share_of_replica(const comm::Group& replicas, const std::vector<std::int64_t>& sizes,
                              double weight) {
  const auto micro_batches = static_cast<int>(sizes.size());
  const std::int64_t examples = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  if (!replicas.valid()) return {.micro_batches = micro_batches, .examples = examples};
  ReplicaShare share;
  double total = 0;
  const auto all = gather_numbers(
      replicas, {static_cast<double>(micro_batches), weight, static_cast<double>(examples)});
  for (int replica = 0; replica < replicas.size(); ++replica) {
    const auto& row = all[static_cast<std::size_t>(replica)];
    const auto examples_of_replica = static_cast<std::int64_t>(row[2]);
    if (replica < replicas.rank()) {
      share.first_micro_batch += static_cast<std::int64_t>(row[0]);
      share.first_example += examples_of_replica;
    }
    share.micro_batches += static_cast<int>(row[0]);
    share.examples += examples_of_replica;
    total += row[1];
  }
  share.of_weight = total == 0 ? 0 : weight / total;
  return share;
}

int fewest_micro_batches(const comm::Group& replicas, int own) {
  if (!replicas.valid()) return own;
  for (const auto& row : gather_numbers(replicas, {static_cast<double>(own)}))
    own = std::min(own, static_cast<int>(row[0]));
  return own;
}

WeightedLoss mean_over_replicas(const comm::Group& replicas, nn::Loss::Kind kind,
                                WeightedLoss own) {
  if (!replicas.valid()) return own;
  double loss = 0, weight = 0;
  for (const auto& row : gather_numbers(replicas, {own.loss, own.weight})) {
    if (row[1] > 0) loss += row[0] * row[1];
    weight += row[1];
  }
  if (kind != nn::Loss::Kind::WholeBatch) own.loss = weight == 0 ? 0 : loss / weight;
  own.weight = weight;
  return own;
}

GatheredRows gather_rows(const comm::Group& replicas, const at::Tensor& own) {
  if (!replicas.valid() || !own.defined()) return {.rows = own};
  GatheredRows result;
  const auto shares = replicas.all_gather_uneven(own.contiguous());
  for (int replica = 0; replica < replicas.rank(); ++replica)
    result.begin += shares[static_cast<std::size_t>(replica)].size(0);
  result.rows = at::cat(shares);
  return result;
}

}  // namespace trestle::pipeline
