#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "trestle/comm/group.h"

// A rank's next collective or message in a form that ranks can send and compare. PyTorch's
// TORCH_DISTRIBUTED_DEBUG=DETAIL does the same with its CollectiveFingerPrint.
namespace trestle::comm {

enum class Kind : std::uint8_t {
  Broadcast,
  AllReduce,
  ReduceScatter,
  AllGather,
  AllToAll,
  Barrier,
  Send,
  Receive
};

struct Fingerprint {
  static constexpr int most_dimensions = 8;

  std::uint64_t order = 0;  // number of the collective in its group, from 1; 0 for messages
  Kind kind = Kind::Barrier;
  std::int8_t dtype = 0;  // an at::ScalarType
  std::uint8_t reduce = 0;
  std::uint8_t dimensions = 0;
  std::int32_t root = 0;  // root of a broadcast; tag of a send or receive
  // The tensor's shape and memory order. With more than 8 dimensions: the first 7, and a hash of
  // the rest. -1 where ranks may differ (the rows of an all_to_all).
  std::array<std::int64_t, most_dimensions> sizes = {};
  std::array<std::int64_t, most_dimensions> strides = {};

  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};
static_assert(std::is_trivially_copyable_v<Fingerprint>);
static_assert(sizeof(Fingerprint) == 144);  // no padding: it is sent as bytes

// Fills in dtype, sizes and strides; the caller sets `kind`, `root` and so on.
Fingerprint fingerprint_of(const at::Tensor& tensor);

// "all_reduce (sum) number 3 on float32 [4, 3]", "send with tag 0 of int64 []".
std::string describe(const Fingerprint& print);

// The dtype's name in Python: "float32".
std::string dtype_name(at::ScalarType type);

// If the ranks' fingerprints differ: a message with two ranks and the call of each. ranks[i] is the
// world's number of the rank that sent prints[i].
std::optional<std::string> difference(const std::vector<Fingerprint>& prints,
                                      const std::vector<int>& ranks);

// The same for the two ends of a message.
std::optional<std::string> difference(const Fingerprint& sent, int from,
                                      const Fingerprint& received, int to);

// The message for rows of an all_to_all that differ, in bytes.
std::string piece_difference(int from, std::int64_t sent, int to, std::int64_t received);

}  // namespace trestle::comm
