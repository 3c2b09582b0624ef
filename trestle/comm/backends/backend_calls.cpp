#include "trestle/comm/backends/backend_calls.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "trestle/comm/backends/direct_collectives.h"
#include "trestle/comm/reduction.h"

namespace trestle::comm {
namespace {

using Tensors = std::vector<at::Tensor>;

std::int64_t group_size(const BackendContext& context) {
  return static_cast<std::int64_t>(context.ranks.size());
}

// Data that is only moved is moved as bytes: not every backend supports every dtype.
at::Tensor as_bytes(const at::Tensor& flat) {
  return flat.scalar_type() == at::kByte ? flat : flat.view(at::kByte);
}

void all_gather(const BackendContext& context, const at::Tensor& output, const at::Tensor& input) {
  std::vector<Tensors> outputs = {as_bytes(output).chunk(group_size(context))};
  Tensors inputs = {as_bytes(input)};
  wait_for(*context.backend.allgather(outputs, inputs), context.deadline);
}

void all_to_all(const BackendContext& context, at::Tensor output, at::Tensor input,
                std::vector<std::int64_t> output_pieces, std::vector<std::int64_t> input_pieces) {
  // Gloo needs a data pointer even for an empty tensor.
  if (output.numel() == 0) output = at::empty({1}, output.options()).narrow(0, 0, 0);
  if (input.numel() == 0) input = at::empty({1}, input.options()).narrow(0, 0, 0);
  wait_for(*context.backend.alltoall_base(output, input, output_pieces, input_pieces),
           context.deadline);
}

at::Tensor reduce_all(std::vector<at::Tensor> inputs, Reduce op) {
  for_each_reduction_pair(
      inputs.size(), [&](std::size_t a, std::size_t b) { reduce_into(inputs[a], inputs[b], op); });
  return inputs[0];
}

// For small tensors one exchange of whole tensors is faster than two exchanges of shards.
void all_reduce(const BackendContext& context, const Request& request) {
  constexpr std::int64_t few_bytes = 1 << 16;
  const std::int64_t size = group_size(context), count = request.input.numel();
  if (static_cast<std::int64_t>(request.input.nbytes()) * (size - 1) > few_bytes)
    return direct_all_reduce(context, request.output, request.reduce);
  const at::Tensor all = at::empty({size, count}, request.input.options());
  direct_all_gather(context, all.view(-1), request.input);
  request.output.copy_(reduce_all(all.unbind(), request.reduce));
}

// The message that ranks exchange before every collective, of one size for all.
struct Header {
  Fingerprint print;
  std::array<char, 112> payload;  // the data of a small collective
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 256);

bool fits_in_header(const Request& request) {
  const Kind kind = request.print.kind;
  if (kind == Kind::Barrier) return true;
  return (kind == Kind::AllGather || kind == Kind::AllReduce) && request.input.is_cpu() &&
         request.input.nbytes() <= sizeof(Header::payload);
}

// Executes a small collective from the headers of all ranks, one per row.
void execute_from_headers(const at::Tensor& headers, Request& request) {
  if (request.print.kind == Kind::Barrier || request.input.numel() == 0) return;
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& header : headers.unbind())
    inputs.push_back(
        header
            .narrow(0, offsetof(Header, payload), static_cast<std::int64_t>(request.input.nbytes()))
            .view(request.input.scalar_type()));
  if (request.print.kind == Kind::AllReduce) {
    request.output.copy_(reduce_all(std::move(inputs), request.reduce));
    return;
  }
  for (std::size_t r = 0; r < inputs.size(); ++r)
    request.output
        .narrow(0, static_cast<std::int64_t>(r) * request.input.numel(), request.input.numel())
        .copy_(inputs[r]);
}

// All ranks compare the whole table, so that all report the same difference.
std::optional<std::string> compare_pieces(const BackendContext& context, const Request& request) {
  const std::int64_t size = group_size(context);
  at::Tensor pieces = at::empty({2 * size}, at::TensorOptions().dtype(at::kLong));
  at::Tensor table = at::empty({size, 2, size}, pieces.options());
  for (std::int64_t r = 0; r < size; ++r) {
    pieces[r] = request.input_pieces[static_cast<std::size_t>(r)];
    pieces[size + r] = request.output_pieces[static_cast<std::size_t>(r)];
  }
  direct_all_gather(context, table.view(-1), pieces);
  const auto at = table.accessor<std::int64_t, 3>();
  for (std::int64_t a = 0; a < size; ++a) {
    for (std::int64_t b = 0; b < size; ++b) {
      if (at[a][0][b] == at[b][1][a]) continue;
      return piece_difference(context.ranks[static_cast<std::size_t>(a)], at[a][0][b],
                              context.ranks[static_cast<std::size_t>(b)], at[b][1][a]);
    }
  }
  return {};
}

}  // namespace

bool is_timeout(const std::exception& error) {
  const std::string_view message = error.what();
  return message.find("Timed out waiting") != std::string_view::npos ||
         message.find("timed out") != std::string_view::npos;
}

void wait_for(c10d::Work& work, std::chrono::milliseconds deadline) {
  if (!work.wait(deadline)) throw std::runtime_error("the operation was aborted");
}

Compared compare(const BackendContext& context, Request& request) {
  const at::NoGradGuard no_grad;
  const bool is_small = fits_in_header(request);
  Header own{.print = request.print, .payload = {}};
  if (is_small && request.input.defined() && request.input.numel() > 0)
    std::memcpy(own.payload.data(), request.input.const_data_ptr(), request.input.nbytes());
  const auto bytes = at::TensorOptions().dtype(at::kByte);
  const at::Tensor sent = at::empty({sizeof(Header)}, bytes);
  const at::Tensor all = at::empty({group_size(context), sizeof(Header)}, bytes);
  std::memcpy(sent.mutable_data_ptr(), &own, sizeof(Header));
  direct_all_gather(context, all.view(-1), sent);
  std::vector<Fingerprint> prints(context.ranks.size());
  for (std::size_t r = 0; r < prints.size(); ++r)
    std::memcpy(&prints[r], all.const_data_ptr<std::uint8_t>() + r * sizeof(Header),
                sizeof(Fingerprint));
  if (auto found = difference(prints, context.ranks)) return {std::move(found)};
  if (request.print.kind == Kind::AllToAll) return {compare_pieces(context, request)};
  if (is_small) execute_from_headers(all, request);
  return {.is_done = is_small};
}

void execute(const BackendContext& context, Request& request) {
  const at::NoGradGuard no_grad;
  const Kind kind = request.print.kind;
  if (kind == Kind::Barrier) {
    wait_for(*context.backend.barrier(), context.deadline);
    return;
  }
  if (kind == Kind::AllToAll) {
    // Gloo may write received rows over rows that it has not sent yet.
    const at::Tensor input =
        share_memory(request.output, request.input) ? request.input.clone() : request.input;
    return all_to_all(context, request.output, input, request.output_pieces, request.input_pieces);
  }
  if (request.input.numel() == 0) return;
  Tensors tensors = {request.output};
  c10d::BroadcastOptions root;
  root.rootRank = request.peer;
  switch (kind) {
    case Kind::Broadcast:
      wait_for(*context.backend.broadcast(tensors, root), context.deadline);
      return;
    case Kind::AllReduce:
      return all_reduce(context, request);
    case Kind::ReduceScatter:
      return direct_reduce_scatter(context, request.output, request.input, request.reduce);
    case Kind::AllGather:
      return direct_all_gather(context, request.output, request.input);
    default:
      return;
  }
}

void execute_on_gpu(const BackendContext& context, Request& request) {
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
      return wait_for(*context.backend.broadcast(tensors, root), context.deadline);
    case Kind::AllReduce:
      return wait_for(*context.backend.allreduce(tensors, sum), context.deadline);
    case Kind::ReduceScatter: {
      std::vector<Tensors> inputs = {request.input.chunk(group_size(context))};
      c10d::ReduceScatterOptions options;
      options.reduceOp = op;
      return wait_for(*context.backend.reduce_scatter(tensors, inputs, options), context.deadline);
    }
    case Kind::AllGather:
      return all_gather(context, request.output, request.input);
    case Kind::AllToAll:
      return all_to_all(context, request.output, request.input, request.output_pieces,
                        request.input_pieces);
    default:
      return;
  }
}

}  // namespace trestle::comm
