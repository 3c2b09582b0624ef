#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/pipeline/transport/stage_transport.h"

// A message between ranks describes its tensors before it sends them: shape, strides, dtype, None,
// whether a gradient is needed, and what shares their memory. Shapes and dtypes may therefore
// change from message to message.
//
// A message begins with a first part, whose receive is posted when nothing is known about the
// message. The first part holds a fixed header, the description of the values, and the bytes of
// those tensors that fit. The rest follows one by one: the description, if it did not fit, and each
// other tensor.
//
// Each message announces the size of the first part of the next message with its tag. If its
// tensors are on the CPU, that is the size at which it would have fitted as a whole, at most
// most_first_part_bytes: a message like it then needs no second receive.
namespace trestle::pipeline {

// The size for the first message with a tag. No first part is smaller.
inline constexpr std::size_t first_part_bytes = 4096;
inline constexpr std::size_t most_first_part_bytes = 256 * 1024;

// A serial number counts the calls of a pipeline, in its low bits. The high bits hold the number of
// the pipeline.
inline constexpr int calls_bits = 32;
inline std::uint64_t call_of(std::uint64_t serial) {
  return serial & ((std::uint64_t{1} << calls_bits) - 1);
}

// Identifies a message, so that a mix-up is an error and not a wrong result.
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

// A message ready to send. All tensors are dense, on the CPU or on the device that made them.
struct PackedMessage {
  at::Tensor first;              // bytes on the CPU
  std::vector<at::Tensor> rest;  // follows the first part, in this order
  // The size that this message announces.
  std::size_t next_first_bytes = first_part_bytes;
};

// Writes the first part to `first`, bytes on the CPU. Throws UsageError for a sparse or quantized
// tensor.
PackedMessage pack(const MessageId& id, const Message& message, at::Tensor first);

// The header of a first part: how many values there are, and where their description is.
struct FirstPart {
  MessageId id;
  std::size_t values = 0;
  std::size_t description_bytes = 0;
  std::size_t next_first_bytes = first_part_bytes;
  bool description_follows = false;
};
// These functions throw FormatError for malformed bytes.
FirstPart read_first_part(std::string_view bytes);
// The description inside the first part, if it does not follow it.
std::string_view description_in(std::string_view bytes, const FirstPart& first);
std::vector<ValueHeader> read_description(std::string_view description, std::size_t values);

// The tensors inside the first part, with their strides; None for all other values. They use the
// memory of `bytes`.
std::vector<at::Tensor> tensors_of_first_part(const at::Tensor& bytes, const FirstPart& first,
                                              const std::vector<ValueHeader>& values);

}  // namespace trestle::pipeline
