#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/pipeline/stage_transport.h"

// What a message between ranks says of its tensors before they come: shape, strides, dtype, None,
// whether a gradient is wanted, and what shares their memory. So nothing that crosses a cut need
// keep its shape or type from message to message, and no receive trusts the last size.
//
// A message begins with one part of first_part_bytes, whose receive is posted before anything is
// known: a fixed header, then the description of the values, then the bytes of those tensors that
// fit. What does not fit follows, one by one: the description, if it was too long, and each tensor.
namespace trestle::pipeline {

inline constexpr std::size_t first_part_bytes = 4096;

// Which message it is, so that a mix-up is an error and not a wrong number. A serial has a number of
// the pipeline in its high bits, and below them which of its calls it is.
inline constexpr int calls_bits = 32;
inline std::uint64_t call_of(std::uint64_t serial) {
  return serial & ((std::uint64_t{1} << calls_bits) - 1);
}

struct MessageId {
  std::uint64_t serial = 0;
  Transfer transfer = {};

  friend bool operator==(const MessageId&, const MessageId&) = default;
};
std::string to_string(const MessageId& id);

struct ValueHeader {
  enum class Place : std::uint8_t { None, FirstPart, Follows };

  Place place = Place::None;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes = {}, strides = {};  // without gaps or overlaps
  bool wants_gradient = false;
  std::optional<nn::SharedWith> shared = {};

  std::size_t bytes() const;  // of the tensor
};

// What is to be sent: all tensors are bytes or dense, on the CPU or on the device that made them.
struct PackedMessage {
  at::Tensor first;              // first_part_bytes bytes, on the CPU
  std::vector<at::Tensor> rest;  // what follows, in order
};

// Throws UsageError for a tensor that cannot be sent: sparse or quantized.
PackedMessage pack(const MessageId& id, const Message& message);

// The first part, read: how many values there are, and where they are described.
struct FirstPart {
  MessageId id;
  std::size_t values = 0;
  std::size_t description_bytes = 0;
  bool description_follows = false;
};
// All of these throw FormatError for bytes that are none of this.
FirstPart read_first_part(std::string_view bytes);
// Where it does not follow.
std::string_view description_in(std::string_view bytes, const FirstPart& first);
std::vector<ValueHeader> read_description(std::string_view description, std::size_t values);

// The tensors that came with the first part, on the CPU, each with its strides; None for others.
std::vector<at::Tensor> tensors_of_first_part(std::string_view bytes, const FirstPart& first,
                                              const std::vector<ValueHeader>& values);

}  // namespace trestle::pipeline
