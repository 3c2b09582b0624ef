#include "trestle/comm/engine_calls.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "trestle/comm/direct_collectives.h"
#include "trestle/comm/pairs.h"
#include "trestle/comm/thread_collectives.h"

namespace trestle::comm {
namespace {

using Tensors = std::vector<at::Tensor>;

std::int64_t engine_size(const Engine& engine) {
  return static_cast<std::int64_t>(engine.ranks.size());
}

// What moves, moves as bytes: not every engine knows every dtype.
at::Tensor as_bytes(const at::Tensor& flat) {
  return flat.scalar_type() == at::kByte ? flat : flat.view(at::kByte);
}

void all_gather(const Engine& engine, const at::Tensor& output, const at::Tensor& input) {
  std::vector<Tensors> outputs = {as_bytes(output).chunk(engine_size(engine))};
  Tensors inputs = {as_bytes(input)};
  wait_for(*engine.backend.allgather(outputs, inputs), engine.deadline);
}

void all_to_all(const Engine& engine, at::Tensor output, at::Tensor input,
                std::vector<std::int64_t> output_pieces, std::vector<std::int64_t> input_pieces) {
  // Gloo asks for memory also where nothing is to be moved.
  if (output.numel() == 0) output = at::empty({1}, output.options()).narrow(0, 0, 0);
  if (input.numel() == 0) input = at::empty({1}, input.options()).narrow(0, 0, 0);
  wait_for(*engine.backend.alltoall_base(output, input, output_pieces, input_pieces),
           engine.deadline);
}

at::Tensor sum_of(std::vector<at::Tensor> parts, Reduce op) {
  for_pairs(parts.size(),
            [&](std::size_t a, std::size_t b) { reduce_into(parts[a], parts[b], op); });
  return parts[0];
}

// Below some size one exchange of everything is quicker than two of parts.
void all_reduce(const Engine& engine, const Request& request) {
  constexpr std::int64_t few_bytes = 1 << 16;
  const std::int64_t size = engine_size(engine), count = request.input.numel();
  if (static_cast<std::int64_t>(request.input.nbytes()) * (size - 1) > few_bytes)
    return direct_all_reduce(engine, request.output, request.reduce);
  const at::Tensor all = at::empty({size, count}, request.input.options());
  direct_all_gather(engine, all.view(-1), request.input);
  request.output.copy_(sum_of(all.unbind(), request.reduce));
}

// What ranks exchange before a collective, of one size whatever it is.
struct Opening {
  Fingerprint print;
  std::array<char, 112> numbers;  // of a small collective
};
static_assert(std::is_trivially_copyable_v<Opening> && sizeof(Opening) == 256);

bool goes_along(const Request& request) {
  const Kind kind = request.print.kind;
  if (kind == Kind::Barrier) return true;
  return (kind == Kind::AllGather || kind == Kind::AllReduce) && request.input.is_cpu() &&
         request.input.nbytes() <= sizeof(Opening::numbers);
}

// Where all openings are there, which lie one behind the other.
void finish_small(const at::Tensor& openings, Request& request) {
  if (request.print.kind == Kind::Barrier || request.input.numel() == 0) return;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& opening : openings.unbind())
    parts.push_back(opening
                        .narrow(0, offsetof(Opening, numbers),
                                static_cast<std::int64_t>(request.input.nbytes()))
                        .view(request.input.scalar_type()));
  if (request.print.kind == Kind::AllReduce) {
    request.output.copy_(sum_of(std::move(parts), request.reduce));
    return;
  }
  for (std::size_t r = 0; r < parts.size(); ++r)
    request.output
        .narrow(0, static_cast<std::int64_t>(r) * request.input.numel(), request.input.numel())
        .copy_(parts[r]);
}

// All ranks see all numbers, so that all say the same.
std::optional<std::string> compare_pieces(const Engine& engine, const Request& request) {
  const std::int64_t size = engine_size(engine);
  at::Tensor pieces = at::empty({2 * size}, at::TensorOptions().dtype(at::kLong));
  at::Tensor table = at::empty({size, 2, size}, pieces.options());
  for (std::int64_t r = 0; r < size; ++r) {
    pieces[r] = request.input_pieces[static_cast<std::size_t>(r)];
    pieces[size + r] = request.output_pieces[static_cast<std::size_t>(r)];
  }
  direct_all_gather(engine, table.view(-1), pieces);
  const auto at = table.accessor<std::int64_t, 3>();
  for (std::int64_t a = 0; a < size; ++a) {
    for (std::int64_t b = 0; b < size; ++b) {
      if (at[a][0][b] == at[b][1][a]) continue;
      return piece_difference(engine.ranks[static_cast<std::size_t>(a)], at[a][0][b],
                              engine.ranks[static_cast<std::size_t>(b)], at[b][1][a]);
    }
  }
  return {};
}

}  // namespace

void wait_for(c10d::Work& work, std::chrono::milliseconds deadline) {
  if (!work.wait(deadline)) throw std::runtime_error("the operation was ended");
}

Compared compare(const Engine& engine, Request& request) {
  const at::NoGradGuard no_grad;
  const bool along = goes_along(request);
  Opening own{.print = request.print, .numbers = {}};
  if (along && request.input.defined() && request.input.numel() > 0)
    std::memcpy(own.numbers.data(), request.input.const_data_ptr(), request.input.nbytes());
  const auto bytes = at::TensorOptions().dtype(at::kByte);
  const at::Tensor sent = at::empty({sizeof(Opening)}, bytes);
  const at::Tensor all = at::empty({engine_size(engine), sizeof(Opening)}, bytes);
  std::memcpy(sent.mutable_data_ptr(), &own, sizeof(Opening));
  direct_all_gather(engine, all.view(-1), sent);
  std::vector<Fingerprint> prints(engine.ranks.size());
  for (std::size_t r = 0; r < prints.size(); ++r)
    std::memcpy(&prints[r], all.const_data_ptr<std::uint8_t>() + r * sizeof(Opening),
                sizeof(Fingerprint));
  if (auto found = difference(prints, engine.ranks)) return {std::move(found)};
  if (request.print.kind == Kind::AllToAll) return {compare_pieces(engine, request)};
  if (along) finish_small(all, request);
  return {.is_done = along};
}

void carry_out(const Engine& engine, Request& request) {
  const at::NoGradGuard no_grad;
  const Kind kind = request.print.kind;
  if (kind == Kind::Barrier) {
    wait_for(*engine.backend.barrier(), engine.deadline);
    return;
  }
  if (kind == Kind::AllToAll) {
    // Gloo writes rows that come before it has sent those that lie there.
    const at::Tensor input =
        share_memory(request.output, request.input) ? request.input.clone() : request.input;
    return all_to_all(engine, request.output, input, request.output_pieces, request.input_pieces);
  }
  if (request.input.numel() == 0) return;
  Tensors tensors = {request.output};
  c10d::BroadcastOptions root;
  root.rootRank = request.peer;
  switch (kind) {
    case Kind::Broadcast:
      wait_for(*engine.backend.broadcast(tensors, root), engine.deadline);
      return;
    case Kind::AllReduce:
      return all_reduce(engine, request);
    case Kind::ReduceScatter:
      return direct_reduce_scatter(engine, request.output, request.input, request.reduce);
    case Kind::AllGather:
      return direct_all_gather(engine, request.output, request.input);
    default:
      return;
  }
}

void carry_out_on_gpu(const Engine& engine, Request& request) {
  static constexpr c10d::ReduceOp::RedOpType operations[] = {
      c10d::ReduceOp::SUM, c10d::ReduceOp::PRODUCT, c10d::ReduceOp::MIN, c10d::ReduceOp::MAX};
  const auto op = operations[static_cast<std::size_t>(request.reduce)];
  Tensors tensors = {request.output};
  c10d::BroadcastOptions root;
  root.rootRank = request.peer;
  c10d::AllreduceOptions sum;
  sum.reduceOp = op;
  switch (request.print.kind) {
    case Kind::Broadcast:
      return wait_for(*engine.backend.broadcast(tensors, root), engine.deadline);
    case Kind::AllReduce:
      return wait_for(*engine.backend.allreduce(tensors, sum), engine.deadline);
    case Kind::ReduceScatter: {
      std::vector<Tensors> inputs = {request.input.chunk(engine_size(engine))};
      c10d::ReduceScatterOptions options;
      options.reduceOp = op;
      return wait_for(*engine.backend.reduce_scatter(tensors, inputs, options), engine.deadline);
    }
    case Kind::AllGather:
      return all_gather(engine, request.output, request.input);
    case Kind::AllToAll:
      return all_to_all(engine, request.output, request.input, request.output_pieces,
                        request.input_pieces);
    default:
      return;
  }
}

}  // namespace trestle::comm
