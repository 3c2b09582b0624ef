#include "trestle/tensor_parallel/collectives.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/text.h"
#include "trestle/comm/purpose.h"

namespace trestle::tensor_parallel {

namespace {

// A collective's input: dense, in memory of its own.
at::Tensor own_copy(const at::Tensor& x) { return x.clone(at::MemoryFormat::Contiguous); }

Later done(const TensorRanks& ranks, const LoggedMessage& message, at::Tensor x) {
  return {ranks, "", message, comm::Work(), [x = std::move(x)] { return x; }};
}

// Starting a collective may fail too: another rank has failed already.
template <class Start>
comm::Work start(const TensorRanks& ranks, const char* verb, const Start& begin) {
  return comm::with_purpose(
      [&] { return text("while the tensor ranks ", verb, " '", ranks.layer(), "'"); }, begin);
}

Bytes bytes_of(const at::Tensor& x) { return static_cast<Bytes>(x.nbytes()); }

std::int64_t largest_shard(const TensorRanks& ranks, std::int64_t whole) {
  return nn::even_range(whole, ranks.size(), 0).size;
}

// The shards of x one after the other in memory, each padded to `size` indices.
at::Tensor shards_in_order(const TensorRanks& ranks, const at::Tensor& x, std::int64_t dimension,
                           std::int64_t size) {
  const std::int64_t whole = x.size(dimension);
  if (size * ranks.size() == whole)
    return x.unflatten(dimension, {ranks.size(), size}).movedim(dimension, 0).contiguous();
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes[static_cast<std::size_t>(dimension)] = size;
  sizes.insert(sizes.begin(), ranks.size());
  const at::Tensor all = at::zeros(sizes, x.options());
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const nn::IndexRange range = nn::even_range(whole, ranks.size(), rank);
    all.select(0, rank)
        .narrow(dimension, 0, range.size)
        .copy_(x.narrow(dimension, range.begin, range.size));
  }
  return all;
}

at::Tensor padded(const at::Tensor& shard, std::int64_t dimension, std::int64_t size) {
  if (shard.size(dimension) == size) return shard.contiguous();
  std::vector<std::int64_t> sizes = shard.sizes().vec();
  sizes[static_cast<std::size_t>(dimension)] = size;
  at::Tensor whole = at::zeros(sizes, shard.options());
  whole.narrow(dimension, 0, shard.size(dimension)).copy_(shard);
  return whole;
}

std::int64_t positive(const at::Tensor& x, std::int64_t dimension) {
  return dimension < 0 ? dimension + x.dim() : dimension;
}

Later reduce_in_place(const TensorRanks& ranks, const at::Tensor& x, comm::Reduce op,
                      const char* verb) {
  const LoggedMessage message = ranks.count(MessageKind::AllReduce, bytes_of(x));
  if (!ranks.exist()) return done(ranks, message, x);
  comm::Work work = start(ranks, verb, [&] { return ranks.group().all_reduce(x, op); });
  return {ranks, verb, message, std::move(work), [x] { return x; }};
}

}  // namespace

at::Tensor Later::get() {
  const bool is_logged = message_.begin > 0 && !ranks_.alone();
  if (is_logged) message_.wait = MessageLog::now();
  comm::with_purpose(
      [&] { return text("while the tensor ranks ", verb_, " '", ranks_.layer(), "'"); },
      [&] { work_.wait(); });
  if (is_logged) {
    message_.end = ranks_.exist() ? MessageLog::now() : message_.wait;
    ranks_.log()->add(message_);
  }
  return result_();
}

Later sum(const TensorRanks& ranks, const at::Tensor& x) {
  return sum_in_place(ranks, ranks.exist() ? own_copy(x) : x);
}

Later sum_in_place(const TensorRanks& ranks, const at::Tensor& x) {
  return reduce_in_place(ranks, x.is_non_overlapping_and_dense() ? x : own_copy(x),
                         comm::Reduce::Sum, "added up");
}

Later largest_in_place(const TensorRanks& ranks, const at::Tensor& x) {
  return reduce_in_place(ranks, x, comm::Reduce::Max, "compared");
}

Later gather(const TensorRanks& ranks, const at::Tensor& shard, std::int64_t dimension,
             std::int64_t whole) {
  if (ranks.alone()) return {ranks, shard};
  const std::int64_t along = positive(shard, dimension), size = largest_shard(ranks, whole);
  const at::Tensor own = padded(shard, along, size);
  const LoggedMessage message = ranks.count(MessageKind::AllGather, ranks.size() * bytes_of(own));
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), ranks.size());
  at::Tensor all;
  comm::Work work;
  if (ranks.exist()) {
    all = at::empty(sizes, own.options());
    work = start(ranks, "gathered", [&] { return ranks.group().all_gather(all, own); });
  } else {
    all = own.unsqueeze(0).expand(sizes);
  }
  return {ranks, "gathered", message, std::move(work), [ranks, all, along, whole] {
            std::vector<at::Tensor> shards;
            for (int rank = 0; rank < ranks.size(); ++rank)
              shards.push_back(all.select(0, rank).narrow(
                  along, 0, nn::even_range(whole, ranks.size(), rank).size));
            return at::cat(shards, along);
          }};
}

Later sum_and_scatter(const TensorRanks& ranks, const at::Tensor& x, std::int64_t dimension) {
  if (ranks.alone()) return {ranks, x};
  const std::int64_t along = positive(x, dimension);
  const std::int64_t whole = x.size(along), largest = largest_shard(ranks, whole);
  const LoggedMessage message = ranks.count(
      MessageKind::ReduceScatter, bytes_of(x) / std::max<Bytes>(whole, 1) * largest * ranks.size());
  if (!ranks.exist()) return done(ranks, message, own_shard(ranks, x, along));
  const std::int64_t own = ranks.own(whole).size;
  const at::Tensor all = shards_in_order(ranks, x, along, largest);
  const at::Tensor shard = at::empty(all.sizes().slice(1), all.options());
  comm::Work work =
      start(ranks, "added up", [&] { return ranks.group().reduce_scatter(shard, all); });
  return {ranks, "added up", message, std::move(work), [shard, along, own] {
            return shard.size(along) == own ? shard : shard.narrow(along, 0, own).contiguous();
          }};
}

at::Tensor own_shard(const TensorRanks& ranks, const at::Tensor& x, std::int64_t dimension) {
  if (ranks.alone()) return x;
  const std::int64_t along = positive(x, dimension);
  const nn::IndexRange range = ranks.own(x.size(along));
  return own_copy(x.narrow(along, range.begin, range.size));
}

Later exchange_shards(const TensorRanks& ranks, const at::Tensor& x, std::int64_t from,
                      std::int64_t whole, std::int64_t to) {
  if (ranks.alone()) return {ranks, x};
  const std::int64_t old_dimension = positive(x, from), new_dimension = positive(x, to);
  const std::int64_t sent = largest_shard(ranks, x.size(new_dimension));
  const std::int64_t held = largest_shard(ranks, whole);
  const at::Tensor out =
      shards_in_order(ranks, padded(x, old_dimension, held), new_dimension, sent);
  const LoggedMessage message = ranks.count(MessageKind::AllToAll, bytes_of(out));
  const at::Tensor in = at::empty_like(out);
  comm::Work work;
  if (ranks.exist()) {
    work = start(ranks, "exchanged", [&] { return ranks.group().all_to_all(in, out); });
  } else {
    in.copy_(out);
  }
  const std::int64_t own = ranks.own(x.size(new_dimension)).size;
  return {ranks, "exchanged", message, std::move(work),
          [ranks, in, old_dimension, whole, new_dimension, own] {
            std::vector<at::Tensor> parts;
            for (int rank = 0; rank < ranks.size(); ++rank)
              parts.push_back(
                  in.select(0, rank)
                      .narrow(old_dimension, 0, nn::even_range(whole, ranks.size(), rank).size)
                      .narrow(new_dimension, 0, own));
            return at::cat(parts, old_dimension);
          }};
}

}  // namespace trestle::tensor_parallel
