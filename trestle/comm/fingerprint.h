#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "trestle/comm/group.h"

// What a rank is about to do together with others, in a form that ranks can send and compare, as
// TORCH_DISTRIBUTED_DEBUG does it for Python.
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

  std::uint64_t order = 0;  // the group's how-manieth collective, from 1; of sends 0
  Kind kind = Kind::Barrier;
  std::int8_t dtype = 0;  // an at::ScalarType
  std::uint8_t reduce = 0;
  std::uint8_t dimensions = 0;
  std::int32_t root = 0;  // of a broadcast; the tag of a send or receive
  // The tensor's shape and memory order; of more than 8 dimensions the first 7, and a hash of the
  // others. What may differ between ranks (rows of an all_to_all) is -1.
  std::array<std::int64_t, most_dimensions> sizes = {};
  std::array<std::int64_t, most_dimensions> strides = {};

  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};
static_assert(std::is_trivially_copyable_v<Fingerprint>);
static_assert(sizeof(Fingerprint) == 144);  // no gaps: it is sent as bytes

// Of a tensor; `kind`, `root` and so on are the caller's to fill in.
Fingerprint fingerprint_of(const at::Tensor& tensor);

// "all_reduce (sum) number 3 on float32 [4, 3]", "send with tag 0 of int64 []".
std::string describe(const Fingerprint& print);

// "float32", as Python says it.
std::string dtype_name(at::ScalarType type);

// Where ranks that should do the same do not: a message that names two ranks and what each does.
// ranks[i] is the world's number of whoever sent prints[i].
std::optional<std::string> difference(const std::vector<Fingerprint>& prints,
                                      const std::vector<int>& ranks);

// The same for the two ends of a message.
std::optional<std::string> difference(const Fingerprint& sent, int from,
                                      const Fingerprint& received, int to);

// And for the rows of an all_to_all, which are compared as bytes.
std::string piece_difference(int from, std::int64_t sent, int to, std::int64_t received);

}  // namespace trestle::comm
