#include "tests/comm/collective_checks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trestle/base/error.h"

namespace trestle::testing {
namespace {

using comm::Group;
using comm::Reduce;
using comm::Work;

// Small integers, different on each rank, so that sums are exact in every dtype.
at::Tensor numbers(at::IntArrayRef sizes, int rank, at::ScalarType dtype = at::kFloat) {
  at::Tensor made = torch::empty(sizes, at::kLong);
  for (std::int64_t i = 0; i < made.numel(); ++i) made.view(-1)[i] = (i * 7 + rank * 3 + 1) % 5 + 1;
  return dtype == at::kBool ? made % 2 == 0 : made.to(dtype);
}

#define EXPECT_SAME(a, b)                                                   \
  EXPECT_TRUE((a).scalar_type() == (b).scalar_type() && torch::equal(a, b)) \
      << "is\n"                                                             \
      << (a) << "\nand not\n"                                               \
      << (b)

at::Tensor reduced(int size, at::IntArrayRef sizes, Reduce op, at::ScalarType dtype) {
  at::Tensor result = numbers(sizes, 0, dtype);
  for (int r = 1; r < size; ++r) {
    const at::Tensor more = numbers(sizes, r, dtype);
    if (dtype == at::kBool)
      result = op == Reduce::Sum || op == Reduce::Max ? result.logical_or(more)
                                                      : result.logical_and(more);
    else if (op == Reduce::Sum)
      result = result + more;
    else if (op == Reduce::Product)
      result = result * more;
    else
      result = op == Reduce::Min ? torch::minimum(result, more) : torch::maximum(result, more);
  }
  return result;
}

constexpr at::ScalarType reducible[] = {at::kFloat, at::kDouble, at::kBFloat16,
                                        at::kHalf,  at::kLong,   at::kInt,
                                        at::kChar,  at::kByte,   at::kBool};
constexpr Reduce operations[] = {Reduce::Sum, Reduce::Product, Reduce::Min, Reduce::Max};

}  // namespace

void check_broadcast(World& world) {
  Group group = world.group();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kShort, at::kBool,
                           at::kComplexFloat}) {
    for (int from = 0; from < world.size(); ++from) {
      at::Tensor tensor = numbers({3, 2}, world.rank(), dtype);
      group.broadcast(tensor, from).wait();
      EXPECT_SAME(tensor, numbers({3, 2}, from, dtype));
    }
  }
  at::Tensor scalar = torch::full({}, static_cast<double>(world.rank()));
  group.broadcast(scalar, world.size() - 1).wait();
  EXPECT_EQ(scalar.item<double>(), world.size() - 1);
}

void check_all_reduce(World& world) {
  Group group = world.group();
  for (const auto dtype : reducible) {
    for (const Reduce op : operations) {
      at::Tensor tensor = numbers({4, 3}, world.rank(), dtype);
      group.all_reduce(tensor, op).wait();
      EXPECT_SAME(tensor, reduced(world.size(), {4, 3}, op, dtype));
    }
  }
  // A contiguous slice, whose surroundings stay unchanged, and a parameter that requires a
  // gradient.
  at::Tensor whole = numbers({6, 4}, world.rank());
  group.all_reduce(whole.narrow(0, 2, 2)).wait();
  EXPECT_SAME(whole.narrow(0, 2, 2),
              reduced(world.size(), {6, 4}, Reduce::Sum, at::kFloat).narrow(0, 2, 2));
  EXPECT_SAME(whole.narrow(0, 0, 2), numbers({6, 4}, world.rank()).narrow(0, 0, 2));
  at::Tensor parameter = numbers({5}, world.rank()).requires_grad_();
  group.all_reduce(parameter).wait();
  EXPECT_SAME(parameter.detach(), reduced(world.size(), {5}, Reduce::Sum, at::kFloat));
  // Larger than any backend's chunks.
  at::Tensor large = torch::full({300'001}, world.rank() + 1.0);
  group.all_reduce(large).wait();
  EXPECT_TRUE(large.eq(world.size() * (world.size() + 1) / 2).all().item<bool>());
}

void check_reduce_scatter(World& world) {
  Group group = world.group();
  const std::int64_t size = world.size();
  for (const auto dtype : reducible) {
    for (const Reduce op : operations) {
      at::Tensor output = torch::empty({2, 3}, dtype);
      group.reduce_scatter(output, numbers({2 * size, 3}, world.rank(), dtype), op).wait();
      EXPECT_SAME(output,
                  reduced(world.size(), {2 * size, 3}, op, dtype).narrow(0, 2 * world.rank(), 2));
    }
  }
  // The output is a slice of the input, as with sharded gradients.
  at::Tensor input = numbers({2 * size}, world.rank());
  group.reduce_scatter(input.narrow(0, 2 * world.rank(), 2), input).wait();
  EXPECT_SAME(
      input.narrow(0, 2 * world.rank(), 2),
      reduced(world.size(), {2 * size}, Reduce::Sum, at::kFloat).narrow(0, 2 * world.rank(), 2));
}

void check_all_gather(World& world) {
  Group group = world.group();
  const std::int64_t size = world.size();
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kBool, at::kShort}) {
    at::Tensor output = torch::empty({size, 2, 3}, dtype);
    group.all_gather(output, numbers({2, 3}, world.rank(), dtype)).wait();
    for (int r = 0; r < world.size(); ++r) EXPECT_SAME(output[r], numbers({2, 3}, r, dtype));
  }
  // The input is its own slice of the output, as with sharded parameters.
  at::Tensor whole = torch::zeros({2 * size});
  whole.narrow(0, 2 * world.rank(), 2).copy_(numbers({2}, world.rank()));
  group.all_gather(whole, whole.narrow(0, 2 * world.rank(), 2)).wait();
  for (int r = 0; r < world.size(); ++r) EXPECT_SAME(whole.narrow(0, 2 * r, 2), numbers({2}, r));
}

void check_all_gather_uneven(World& world) {
  Group group = world.group();
  for (const auto dtype : {at::kFloat, at::kLong, at::kBool}) {
    const auto pieces = group.all_gather_uneven(numbers({world.rank(), 2}, world.rank(), dtype));
    ASSERT_EQ(pieces.size(), static_cast<std::size_t>(world.size()));
    for (int r = 0; r < world.size(); ++r)
      EXPECT_SAME(pieces[static_cast<std::size_t>(r)], numbers({r, 2}, r, dtype));
  }
}

void check_all_to_all(World& world) {
  Group group = world.group();
  const std::int64_t size = world.size();
  for (const auto dtype : {at::kFloat, at::kLong, at::kBFloat16, at::kBool}) {
    at::Tensor output = torch::empty({2 * size, 3}, dtype);
    group.all_to_all(output, numbers({2 * size, 3}, world.rank(), dtype)).wait();
    for (int r = 0; r < world.size(); ++r)
      EXPECT_SAME(output.narrow(0, 2 * r, 2),
                  numbers({2 * size, 3}, r, dtype).narrow(0, 2 * world.rank(), 2));
  }
  // Rank a sends (a + b) % 3 rows to rank b, which may be none.
  const auto rows = [](int a, int b) { return std::int64_t{(a + b) % 3}; };
  std::vector<std::int64_t> to, from;
  std::int64_t sent = 0, received = 0;
  for (int r = 0; r < world.size(); ++r) {
    to.push_back(rows(world.rank(), r));
    from.push_back(rows(r, world.rank()));
    sent += to.back();
    received += from.back();
  }
  at::Tensor output = torch::full({received, 2}, -1.0);
  group.all_to_all(output, torch::full({sent, 2}, static_cast<double>(world.rank())), from, to)
      .wait();
  std::int64_t at = 0;
  for (int r = 0; r < world.size(); ++r) {
    const std::int64_t count = from[static_cast<std::size_t>(r)];
    EXPECT_TRUE(output.narrow(0, at, count).eq(r).all().item<bool>());
    at += count;
  }
  // In place, with more data than fits into a socket's buffer.
  constexpr std::int64_t many = 100000;
  const auto large = [&](int rank) {
    return torch::arange(many * size, at::kDouble).unsqueeze(1) + 0.25 * rank;
  };
  at::Tensor in_place = large(world.rank());
  group.all_to_all(in_place, in_place).wait();
  for (int r = 0; r < world.size(); ++r)
    EXPECT_SAME(in_place.narrow(0, many * r, many), large(r).narrow(0, many * world.rank(), many));
}

void check_many_dimensions(World& world) {
  const auto made = [](int rank) {
    return torch::full({rank + 1, 1, 2, 1, 1, 1, 1, 1, 1, 3}, static_cast<double>(rank));
  };
  const auto all = world.group().all_gather_uneven(made(world.rank()));
  for (int r = 0; r < world.size(); ++r) EXPECT_SAME(all[static_cast<std::size_t>(r)], made(r));
}

void check_bytes(World& world) {
  Group group = world.group();
  for (int from = 0; from < world.size(); ++from) {
    const std::string bytes =
        from == world.rank() ? std::string("a\0b", 3) + std::to_string(from) : "x";
    EXPECT_EQ(group.broadcast_bytes(bytes, from), std::string("a\0b", 3) + std::to_string(from));
  }
  EXPECT_EQ(group.broadcast_bytes("", 0), "");
  const auto all = group.all_gather_bytes(std::string(static_cast<std::size_t>(world.rank()), 'y'));
  for (int r = 0; r < world.size(); ++r)
    EXPECT_EQ(all.at(static_cast<std::size_t>(r)), std::string(static_cast<std::size_t>(r), 'y'));
  group.barrier();
}

void check_messages(World& world) {
  Group group = world.group();
  const int next = (world.rank() + 1) % world.size();
  const int before = (world.rank() + world.size() - 1) % world.size();
  if (next == world.rank()) return;
  // Two messages on one tag stay in order; another tag is received first.
  std::vector<at::Tensor> received = {torch::empty({2, 2}), torch::empty({2, 2}),
                                      torch::empty({3}, at::kLong)};
  std::vector<Work> works = {group.receive(received[2], before, 1 << 20),
                             group.receive(received[0], before),
                             group.receive(received[1], before)};
  works.push_back(group.send(numbers({2, 2}, world.rank()), next));
  works.push_back(group.send(numbers({2, 2}, world.rank() + 10), next));
  works.push_back(group.send(numbers({3}, world.rank(), at::kLong), next, 1 << 20));
  for (Work& work : works) work.wait();
  for (Work& work : works) EXPECT_TRUE(work.done());
  EXPECT_SAME(received[0], numbers({2, 2}, before));
  EXPECT_SAME(received[1], numbers({2, 2}, before + 10));
  EXPECT_SAME(received[2], numbers({3}, before, at::kLong));
}

void check_empty_tensors(World& world) {
  Group group = world.group();
  at::Tensor none = torch::empty({0, 3});
  group.broadcast(none, 0).wait();
  group.all_reduce(none).wait();
  group.reduce_scatter(torch::empty({0}), torch::empty({0})).wait();
  group.all_gather(torch::empty({0}), torch::empty({0})).wait();
  group.all_to_all(torch::empty({0}), torch::empty({0})).wait();
  if (world.size() == 1) return;
  if (world.rank() == 0) group.send(none, 1).wait();
  if (world.rank() == 1) group.receive(none, 0).wait();
}

void check_memory_formats(World& world) {
  Group group = world.group();
  const auto channels_last = at::MemoryFormat::ChannelsLast;
  const std::vector<std::int64_t> sizes = {2, 3, 2, 2};
  at::Tensor tensor = numbers(sizes, world.rank()).contiguous(channels_last);
  group.all_reduce(tensor).wait();
  EXPECT_TRUE(tensor.is_contiguous(channels_last));
  EXPECT_SAME(tensor, reduced(world.size(), sizes, Reduce::Sum, at::kFloat));
  tensor = numbers(sizes, world.rank()).contiguous(channels_last);
  group.broadcast(tensor, 0).wait();
  EXPECT_SAME(tensor, numbers(sizes, 0));
  tensor = numbers(sizes, world.rank()).contiguous(channels_last);
  at::Tensor all = torch::empty({2 * world.size(), 3, 2, 2}).contiguous(channels_last);
  group.all_gather(all, tensor).wait();
  for (int r = 0; r < world.size(); ++r) EXPECT_SAME(all.narrow(0, 2 * r, 2), numbers(sizes, r));
  at::Tensor transposed = numbers({3, 4}, world.rank()).t();
  group.all_reduce(transposed).wait();
  EXPECT_SAME(transposed, reduced(world.size(), {3, 4}, Reduce::Sum, at::kFloat).t());
}

void check_many_in_flight(World& world) {
  Group group = world.group();
  constexpr int count = 30;
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < count; ++i) {
    tensors.push_back(torch::full({i + 1}, static_cast<double>(i + world.rank())));
    works.push_back(group.all_reduce(tensors.back()));
  }
  // Messages pass between collectives in flight.
  if (world.size() > 1 && world.rank() < 2) {
    at::Tensor theirs = torch::empty({1});
    Work receive = group.receive(theirs, 1 - world.rank());
    group.send(torch::full({1}, 5.0 + world.rank()), 1 - world.rank()).wait();
    receive.wait();
    EXPECT_EQ(theirs.item<float>(), 6.0F - static_cast<float>(world.rank()));
  }
  for (int i = count; i-- > 0;) works[static_cast<std::size_t>(i)].wait();
  const int ranks = world.size(), all = ranks * (ranks - 1) / 2;
  for (int i = 0; i < count; ++i)
    EXPECT_TRUE(tensors[static_cast<std::size_t>(i)].eq(i * ranks + all).all().item<bool>());
}

void check_dropped_works(World& world) {
  Group group = world.group();
  at::Tensor sum = torch::ones({3});
  group.all_reduce(sum);  // drops its Work
  if (world.rank() == 0 && world.size() > 1) group.send(torch::full({3}, 4.0), 1);
  if (world.rank() == 0 && world.size() > 1)
    group.with_check(comm::Check::Off).send(torch::full({3}, 5.0), 1, 7);
  if (world.rank() == 1) {
    at::Tensor got = torch::zeros({3});
    group.receive(got, 0).wait();
    EXPECT_EQ(got[2].item<float>(), 4.0F);
    group.with_check(comm::Check::Off).receive(got, 0, 7).wait();
    EXPECT_EQ(got[2].item<float>(), 5.0F);
  }
  group.barrier();  // runs after it
  EXPECT_EQ(sum[0].item<float>(), static_cast<float>(world.size()));
}

void check_groups(World& world) {
  if (world.size() < 3) return;
  Group ends = world.make_group({world.size() - 1, 0});
  Group first = world.make_group({0, 1});
  EXPECT_EQ(first.valid(), world.rank() < 2);
  EXPECT_EQ(ends.valid(), world.rank() == 0 || world.rank() == world.size() - 1);
  if (ends.valid()) {
    EXPECT_EQ(ends.rank(), world.rank() == 0 ? 1 : 0);
    at::Tensor tensor = torch::full({2}, static_cast<double>(world.rank()));
    ends.broadcast(tensor, 0).wait();
    EXPECT_EQ(tensor[0].item<float>(), static_cast<float>(world.size() - 1));
  } else {
    EXPECT_THROW(ends.rank(), UsageError);
  }
  if (first.valid()) {
    at::Tensor tensor = torch::ones({2});
    first.all_reduce(tensor).wait();
    EXPECT_EQ(tensor[0].item<float>(), 2.0F);
  }
  EXPECT_THROW(world.make_group({0, 0}), UsageError);
  EXPECT_THROW(world.make_group({world.size()}), UsageError);
  EXPECT_THROW(world.make_group({}), UsageError);
}

void check_without_fingerprints(World& world) {
  Group checked = world.group(), group = checked.with_check(comm::Check::Off);
  at::Tensor a = torch::ones({4}), b = torch::ones({4}), c = torch::ones({4});
  Work first = group.all_reduce(a), second = checked.all_reduce(b), third = group.all_reduce(c);
  third.wait();
  first.wait();
  second.wait();
  for (const at::Tensor& sum : {a, b, c})
    EXPECT_EQ(sum[3].item<float>(), static_cast<float>(world.size()));
  if (world.size() == 1) return;
  if (world.rank() == 0) {
    Work work = group.send(torch::full({1024}, 3.0), 1, 5);
    work.wait();
    work.wait();
  } else if (world.rank() == 1) {
    at::Tensor got = torch::zeros({1024});
    group.receive(got, 0, 5).wait();
    EXPECT_TRUE(got.eq(3).all().item<bool>());
  }
}

void check_refused_tensors(World& world) {
  Group group = world.group();
  const at::Tensor good = torch::ones({4, 4});
  const int other = world.rank() == 0 ? 1 : 0;
  EXPECT_THROW(group.all_reduce(good.slice(1, 0, 4, 2)), UsageError);  // gaps
  EXPECT_THROW(group.all_reduce(torch::ones({1}).expand({4})),
               UsageError);  // one element four times
  EXPECT_THROW(group.all_reduce(good.to_sparse()), UsageError);
  EXPECT_THROW(group.all_reduce(at::Tensor()), UsageError);
  EXPECT_THROW(group.all_reduce(torch::ones({2}, at::kComplexFloat)), UsageError);
  EXPECT_THROW(group.broadcast(torch::empty({2}, at::kMeta), 0), UsageError);
  EXPECT_THROW(group.broadcast(good, world.size()), UsageError);
  EXPECT_THROW(group.reduce_scatter(torch::ones({3}), torch::ones({3 * world.size() + 1})),
               UsageError);
  EXPECT_THROW(group.all_gather(torch::ones({3}), torch::ones({4})), UsageError);
  EXPECT_THROW(group.all_gather(torch::ones({2 * world.size()}, at::kDouble), torch::ones({2})),
               UsageError);
  EXPECT_THROW(group.all_to_all(good, good, {1}, {2}), UsageError);
  EXPECT_THROW(group.send(good, world.rank()), UsageError);
  EXPECT_THROW(group.send(good, other, -1), UsageError);
  EXPECT_THROW(group.send(good, other, (1 << 20) + 1), UsageError);
  EXPECT_THROW(group.receive(good, -1), UsageError);
  try {
    group.all_gather_uneven(torch::ones({}));
    ADD_FAILURE() << "a scalar has no rows";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "all_gather_uneven: the input has no rows: it is a scalar");
  }
  group.barrier();  // the group stays usable
}

void check_collectives(World& world) {
  check_broadcast(world);
  check_all_reduce(world);
  check_reduce_scatter(world);
  check_all_gather(world);
  check_all_gather_uneven(world);
  check_all_to_all(world);
  check_many_dimensions(world);
  check_writes_are_seen_by_autograd(world);
  check_inference_tensors(world);
  check_bytes(world);
  check_messages(world);
  check_empty_tensors(world);
  check_memory_formats(world);
  check_many_in_flight(world);
  check_dropped_works(world);
  check_groups(world);
  check_without_fingerprints(world);
  check_refused_tensors(world);
}

}  // namespace trestle::testing
