#include "trestle/comm/engine_calls.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <stdexcept>

#include "trestle/comm/direct_collectives.h"
#include "trestle/comm/thread_collectives.h"

namespace trestle::comm {
namespace {

using Tensors = std::vector<at::Tensor>;

std::int64_t size_of(const Engine& engine) {
  return static_cast<std::int64_t>(engine.ranks.size());
}

// What moves, moves as bytes: not every engine knows every dtype.
at::Tensor as_bytes(const at::Tensor& flat) {
  return flat.scalar_type() == at::kByte ? flat : flat.view(at::kByte);
}

void all_gather(const Engine& engine, const at::Tensor& output, const at::Tensor& input) {
  std::vector<Tensors> outputs = {as_bytes(output).chunk(size_of(engine))};
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

// Below some size one exchange is quicker than two.
void all_reduce(const Engine& engine, const Request& request) {
  constexpr std::int64_t few_bytes = 1 << 14;
  if (static_cast<std::int64_t>(request.input.nbytes()) > few_bytes)
    return direct_all_reduce(engine, request.output, request.reduce);
  const std::int64_t size = size_of(engine), count = request.input.numel();
  const at::Tensor all = at::empty({size, count}, request.input.options());
  direct_all_gather(engine, all.view(-1), request.input);
  at::Tensor sum = all[0];
  for (std::int64_t r = 1; r < size; ++r) reduce_into(sum, all[r], request.reduce);
  request.output.copy_(sum);
}

}  // namespace

void wait_for(c10d::Work& work, std::chrono::milliseconds deadline) {
  if (!work.wait(deadline)) throw std::runtime_error("the operation was ended");
}

std::optional<std::string> compare_prints(const Engine& engine, const Request& request) {
  const auto bytes = at::TensorOptions().dtype(at::kByte);
  const std::int64_t size = size_of(engine), length = sizeof(Fingerprint);
  at::Tensor own = at::empty({length}, bytes), all = at::empty({size * length}, bytes);
  std::memcpy(own.mutable_data_ptr(), &request.print, sizeof(Fingerprint));
  direct_all_gather(engine, all, own);
  std::vector<Fingerprint> prints(engine.ranks.size());
  std::memcpy(prints.data(), all.const_data_ptr(), all.nbytes());
  if (auto found = difference(prints, engine.ranks)) return found;
  if (request.print.kind != Kind::AllToAll) return {};
  // All ranks see all numbers, so that all say the same.
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
      std::vector<Tensors> inputs = {request.input.chunk(size_of(engine))};
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
