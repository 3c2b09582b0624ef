#include "trestle/comm/fingerprint.h"

#include <algorithm>
#include <cctype>
#include <span>

#include "trestle/base/split_mix.h"
#include "trestle/base/text.h"

namespace trestle::comm {
namespace {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::Broadcast:
      return "broadcast";
    case Kind::AllReduce:
      return "all_reduce";
    case Kind::ReduceScatter:
      return "reduce_scatter";
    case Kind::AllGather:
      return "all_gather";
    case Kind::AllToAll:
      return "all_to_all";
    case Kind::Barrier:
      return "barrier";
    case Kind::Send:
      return "send";
    case Kind::Receive:
      return "receive";
  }
  return "an unknown collective";
}

const char* name_of(Reduce op) {
  switch (op) {
    case Reduce::Sum:
      return "sum";
    case Reduce::Product:
      return "product";
    case Reduce::Min:
      return "min";
    case Reduce::Max:
      return "max";
  }
  return "unknown";
}

bool is_message(Kind kind) { return kind == Kind::Send || kind == Kind::Receive; }

std::string call_of(const Fingerprint& print) {
  std::string call = name_of(print.kind);
  if (print.kind == Kind::AllReduce || print.kind == Kind::ReduceScatter)
    call += text(" (", name_of(static_cast<Reduce>(print.reduce)), ")");
  if (print.kind == Kind::Broadcast) call += text(" from ", print.root);
  if (is_message(print.kind)) call += text(" with tag ", print.root);
  if (print.order > 0) call += text(" number ", print.order);
  return call;
}

// The number of dimensions whose sizes are stored; the remaining ones share the last entry as a
// hash.
std::int64_t shown_dimensions(std::int64_t dimensions) {
  constexpr std::int64_t most = Fingerprint::most_dimensions;
  return dimensions > most ? most - 1 : dimensions;
}

std::int64_t mixed(std::int64_t hash, std::int64_t number) {
  const auto next =
      split_mix(static_cast<std::uint64_t>(hash) ^ static_cast<std::uint64_t>(number));
  return static_cast<std::int64_t>(next >> 1U);
}

// " with strides [...]", or "" for a contiguous tensor.
std::string memory_order(const Fingerprint& print) {
  const int dimensions = print.dimensions;
  if (dimensions > Fingerprint::most_dimensions) return "";
  std::int64_t stride = 1;
  bool is_contiguous = true;
  for (int d = dimensions - 1; d >= 0; --d) {
    if (print.sizes[d] != 1 && print.strides[d] != 0)
      is_contiguous = is_contiguous && print.strides[d] == stride;
    stride *= std::max<std::int64_t>(1, print.sizes[d]);
  }
  if (is_contiguous) return "";
  return text(" with strides [",
              join(std::span(print.strides.data(), static_cast<std::size_t>(dimensions)), ", "),
              "]");
}

}  // namespace

std::string dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kLong:
      return "int64";
    case at::kInt:
      return "int32";
    case at::kShort:
      return "int16";
    case at::kChar:
      return "int8";
    case at::kByte:
      return "uint8";
    case at::kBool:
      return "bool";
    default:
      return c10::toString(type);
  }
}

Fingerprint fingerprint_of(const at::Tensor& tensor) {
  Fingerprint print;
  print.dtype = static_cast<std::int8_t>(tensor.scalar_type());
  print.dimensions = static_cast<std::uint8_t>(std::min<std::int64_t>(tensor.dim(), UINT8_MAX));
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    // The stride of a dimension of size 1, or of an empty tensor, has no meaning.
    const bool has_stride = tensor.size(d) > 1 && tensor.numel() > 0;
    const std::int64_t stride = has_stride ? tensor.stride(d) : 0;
    const bool alone = d < shown_dimensions(tensor.dim());
    const auto at = static_cast<std::size_t>(alone ? d : Fingerprint::most_dimensions - 1);
    print.sizes[at] = alone ? tensor.size(d) : mixed(print.sizes[at], tensor.size(d));
    print.strides[at] = alone ? stride : mixed(print.strides[at], stride);
  }
  return print;
}

std::string describe(const Fingerprint& print) {
  const std::string call = call_of(print);
  if (print.kind == Kind::Barrier) return call;
  std::vector<std::string> sizes;
  const std::int64_t shown = shown_dimensions(print.dimensions);
  for (std::int64_t d = 0; d < shown; ++d) {
    const std::int64_t size = print.sizes[static_cast<std::size_t>(d)];
    sizes.push_back(size < 0 ? "rows" : std::to_string(size));
  }
  if (shown < print.dimensions)
    sizes.push_back(text("... (", int{print.dimensions}, " dimensions)"));
  return text(call, is_message(print.kind) ? " of " : " on ",
              dtype_name(static_cast<at::ScalarType>(print.dtype)), " [", join(sizes, ", "), "]",
              memory_order(print));
}

std::optional<std::string> difference(const std::vector<Fingerprint>& prints,
                                      const std::vector<int>& ranks) {
  for (std::size_t i = 1; i < prints.size(); ++i) {
    if (prints[i] == prints[0]) continue;
    return text("ranks of one group call different operations: rank ", ranks[0], " calls ",
                describe(prints[0]), ", rank ", ranks[i], " calls ", describe(prints[i]));
  }
  return {};
}

std::optional<std::string> difference(const Fingerprint& sent, int from,
                                      const Fingerprint& received, int to) {
  Fingerprint expected = received;
  expected.kind = Kind::Send;
  if (sent == expected) return {};
  return text("the two ends of a message differ: rank ", from, " calls ", describe(sent), " to ",
              to, ", rank ", to, " calls ", describe(received), " from ", from);
}

std::string piece_difference(int from, std::int64_t sent, int to, std::int64_t received) {
  return text("rows of an all_to_all differ: rank ", from, " sends ", sent, " bytes to rank ", to,
              ", which expects ", received);
}

}  // namespace trestle::comm
