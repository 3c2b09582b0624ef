#include "trestle/comm/request.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <numeric>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/device.h"
#include "trestle/device/host_memory.h"

namespace trestle::comm {
namespace {

[[noreturn]] void refuse(const char* call, const std::string& why, std::string hint = "") {
  throw UsageError(text(call, ": ", why), {.hint = std::move(hint)});
}

std::string shape(const at::Tensor& tensor) {
  return text(dtype_name(tensor.scalar_type()), " [", join(tensor.sizes(), ", "), "]");
}

void check_tensor(const char* call, const at::Tensor& tensor) {
  if (!tensor.defined()) refuse(call, "the tensor is not defined");
  if (tensor.layout() != at::kStrided)
    refuse(call, text("a tensor of layout ", tensor.layout(), " cannot be sent"),
           "Pass a dense tensor: tensor.to_dense().");
  if (!tensor.is_cpu() && !tensor.is_privateuseone() && !tensor.is_cuda())
    refuse(call, text("a tensor on ", tensor.device().str(), " cannot be sent"));
  if (!tensor.is_non_overlapping_and_dense() || tensor.is_conj() || tensor.is_neg())
    refuse(call,
           text("the tensor ", shape(tensor), " with strides [", join(tensor.strides(), ", "),
                "] is not dense"),
           "Pass tensor.contiguous(), and copy the result back if it is an output.");
}

at::Tensor flat(const at::Tensor& tensor) {
  const at::Tensor host = host_view(tensor.detach());
  if (host.is_inference()) {
    // Backends write in threads of their own, outside the caller's InferenceMode.
    const c10::InferenceMode outside(false);
    return at::from_blob(
        host.data_ptr(), {host.numel()}, [host](void*) {}, host.options());
  }
  return host.as_strided({tensor.numel()}, {1}, host.storage_offset());
}

at::Tensor flat_bytes(const at::Tensor& tensor) {
  const at::Tensor numbers = flat(tensor);
  // In InferenceMode a view of another dtype would be an inference tensor.
  const c10::InferenceMode outside(false);
  return numbers.scalar_type() == at::kByte ? numbers : numbers.view(at::kByte);
}

void check_rank(const char* call, const char* name, int rank, int size) {
  if (rank < 0 || rank >= size)
    refuse(call, text("'", name, "' is ", rank, ", but the group's ranks are 0 to ", size - 1));
}

void check_same_dtype(const char* call, const at::Tensor& output, const at::Tensor& input) {
  if (output.scalar_type() != input.scalar_type())
    refuse(call, text("the output is ", dtype_name(output.scalar_type()), " and the input ",
                      dtype_name(input.scalar_type())));
}

// Shards are consecutive in memory, so input and output must have the same memory order.
void check_same_order(const char* call, const at::Tensor& output, const at::Tensor& input) {
  if (output.is_contiguous() && input.is_contiguous()) return;
  if (output.dim() == input.dim() && output.dim() > 0 &&
      output.sizes().slice(1) == input.sizes().slice(1) &&
      output.strides().slice(1) == input.strides().slice(1))
    return;
  refuse(call, text("the output ", shape(output), " with strides [", join(output.strides(), ", "),
                    "] and the input ", shape(input), " with strides [",
                    join(input.strides(), ", "), "] are not in the same memory order"));
}

// Backends reduce a bool as a byte, so its sum is a maximum and its product a minimum.
void set_reduction(const char* call, Request& request, const at::Tensor& tensor, Reduce op) {
  request.print.reduce = static_cast<std::uint8_t>(op);
  request.reduce = op;
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kLong:
    case at::kInt:
    case at::kChar:
    case at::kByte:
      return;
    case at::kBool:
      if (op == Reduce::Sum) request.reduce = Reduce::Max;
      if (op == Reduce::Product) request.reduce = Reduce::Min;
      return;
    default:
      refuse(call, text(dtype_name(tensor.scalar_type()), " cannot be reduced over ranks"),
             "Reducible dtypes: float64, float32, float16, bfloat16, int64, int32, int8, uint8, "
             "bool.");
  }
}

at::Tensor flat_numbers(const at::Tensor& tensor) {
  const at::Tensor numbers = flat(tensor);
  return numbers.scalar_type() == at::kBool ? numbers.view(at::kByte) : numbers;
}

}  // namespace

Request broadcast_request(const at::Tensor& tensor, int from, int size) {
  check_tensor("broadcast", tensor);
  check_rank("broadcast", "from", from, size);
  Request request{.print = fingerprint_of(tensor)};
  request.print.kind = Kind::Broadcast;
  request.print.root = from;
  request.peer = from;
  request.input = request.output = flat_bytes(tensor);
  return request;
}

Request all_reduce_request(const at::Tensor& tensor, Reduce op) {
  check_tensor("all_reduce", tensor);
  Request request{.print = fingerprint_of(tensor)};
  request.print.kind = Kind::AllReduce;
  set_reduction("all_reduce", request, tensor, op);
  request.input = request.output = flat_numbers(tensor);
  return request;
}

Request reduce_scatter_request(const at::Tensor& output, const at::Tensor& input, Reduce op,
                               int size) {
  check_tensor("reduce_scatter", output);
  check_tensor("reduce_scatter", input);
  check_same_dtype("reduce_scatter", output, input);
  if (input.numel() != output.numel() * size)
    refuse("reduce_scatter", text("the input ", shape(input), " is not ", size,
                                  " times the output ", shape(output), ", for ", size, " ranks"));
  check_same_order("reduce_scatter", output, input);
  Request request{.print = fingerprint_of(output)};
  request.print.kind = Kind::ReduceScatter;
  set_reduction("reduce_scatter", request, output, op);
  request.input = flat_numbers(input);
  request.output = flat_numbers(output);
  return request;
}

Request all_gather_request(const at::Tensor& output, const at::Tensor& input, int size) {
  check_tensor("all_gather", output);
  check_tensor("all_gather", input);
  check_same_dtype("all_gather", output, input);
  if (output.numel() != input.numel() * size)
    refuse("all_gather", text("the output ", shape(output), " is not ", size, " times the input ",
                              shape(input), ", for ", size, " ranks"));
  check_same_order("all_gather", output, input);
  Request request{.print = fingerprint_of(input)};
  request.print.kind = Kind::AllGather;
  request.input = flat_bytes(input);
  request.output = flat_bytes(output);
  return request;
}

namespace {

void check_has_rows(const char* call, const at::Tensor& tensor, const char* name) {
  if (tensor.dim() == 0) refuse(call, text("the ", name, " has no rows: it is a scalar"));
  if (!tensor.is_contiguous())
    refuse(call, text("the rows of the ", name, " ", shape(tensor), " are not contiguous"),
           "Pass tensor.contiguous().");
}

// The number of bytes of each rank's rows.
std::vector<std::int64_t> pieces(const at::Tensor& tensor, const char* name,
                                 const std::vector<std::int64_t>& rows, int size) {
  constexpr const char* call = "all_to_all";
  check_has_rows(call, tensor, name);
  const std::int64_t all = tensor.size(0);
  std::int64_t row = tensor.element_size();
  for (std::int64_t d = 1; d < tensor.dim(); ++d) row *= tensor.size(d);
  if (rows.empty()) {
    if (all % size != 0)
      refuse(call,
             text("the ", all, " rows of the ", name, " are not divisible by ", size, " ranks"),
             "Pass the number of rows of each rank: input_rows and output_rows.");
    return std::vector<std::int64_t>(static_cast<std::size_t>(size), all / size * row);
  }
  if (static_cast<int>(rows.size()) != size)
    refuse(call,
           text("rows of the ", name, " for ", rows.size(), " ranks, but the group has ", size));
  std::vector<std::int64_t> bytes;
  for (const std::int64_t count : rows) {
    if (count < 0) refuse(call, text("a negative number of rows of the ", name, ": ", count));
    bytes.push_back(count * row);
  }
  if (const auto sum = std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); sum != all)
    refuse(call, text("the rows of the ", name, " [", join(rows, ", "), "] sum to ", sum,
                      ", but it has ", all));
  return bytes;
}

}  // namespace

Request all_to_all_request(const at::Tensor& output, const at::Tensor& input,
                           std::vector<std::int64_t> output_rows,
                           std::vector<std::int64_t> input_rows, int size) {
  check_tensor("all_to_all", output);
  check_tensor("all_to_all", input);
  check_same_dtype("all_to_all", output, input);
  if (output.dim() != input.dim() ||
      (input.dim() > 1 && output.sizes().slice(1) != input.sizes().slice(1)))
    refuse("all_to_all", text("rows of the output ", shape(output), " and of the input ",
                              shape(input), " differ in shape"));
  Request request{.print = fingerprint_of(input)};
  request.print.kind = Kind::AllToAll;
  request.print.sizes[0] = -1;
  request.print.strides = {};  // contiguous, or empty
  request.input_pieces = pieces(input, "input", input_rows, size);
  request.output_pieces = pieces(output, "output", output_rows, size);
  request.input = flat_bytes(input);
  request.output = flat_bytes(output);
  return request;
}

void check_rows(const char* call, const at::Tensor& input) {
  check_tensor(call, input);
  check_has_rows(call, input, "input");
}

Request barrier_request() { return {.print = {.kind = Kind::Barrier}}; }

Request message_request(Kind kind, const at::Tensor& tensor, int peer, int tag, int rank,
                        int size) {
  const char* call = kind == Kind::Send ? "send" : "receive";
  check_tensor(call, tensor);
  check_rank(call, kind == Kind::Send ? "to" : "from", peer, size);
  if (peer == rank) refuse(call, text("rank ", rank, " is this rank itself"));
  if (tag < 0 || tag > most_tag)
    refuse(call, text("the tag is ", tag, ", but must be 0 to ", most_tag));
  Request request{.print = fingerprint_of(tensor)};
  request.print.kind = kind;
  request.print.root = tag;
  request.input = request.output = flat_bytes(tensor);
  request.peer = peer;
  request.tag = tag;
  return request;
}

}  // namespace trestle::comm
