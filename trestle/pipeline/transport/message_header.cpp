#include "trestle/pipeline/transport/message_header.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::pipeline {
namespace {

constexpr std::uint32_t magic = 0x4d535254;  // "TRSM"
constexpr std::uint32_t version = 2;
constexpr std::size_t most_values = 1U << 16U;
constexpr std::size_t most_dimensions = 64;
// Tensors in the first part begin at multiples of it, as allocated tensors do.
constexpr std::size_t alignment = 64;

// The fixed header, in the byte order of the machine: ranks compare theirs when they start.
struct Fixed {
  std::uint32_t magic, version;
  std::uint64_t serial;
  std::int32_t route, micro_batch;
  std::uint32_t gradient, follows;
  std::uint64_t values, description_bytes, next_first_bytes;
};

// One value of the description. Its sizes and strides follow.
struct FixedValue {
  std::uint8_t place, dtype, dimensions, flags;
  std::uint8_t owner;
  std::array<std::uint8_t, 3> unused;
  std::int32_t layer, output;
};
constexpr std::uint8_t wants_gradient_flag = 1, shared_flag = 2;

[[noreturn]] void refuse_message(const std::string& what) {
  throw FormatError("a message between ranks " + what,
                    {.hint = "Do all ranks run the same program?"});
}

template <class Record>
void append(std::string& bytes, const Record& record) {
  bytes.append(reinterpret_cast<const char*>(&record), sizeof(Record));
}

template <class Record>
Record take(std::string_view& bytes) {
  if (bytes.size() < sizeof(Record)) refuse_message("ends too early");
  Record record;
  std::memcpy(&record, bytes.data(), sizeof(Record));
  bytes.remove_prefix(sizeof(Record));
  return record;
}

std::size_t aligned(std::size_t place) { return (place + alignment - 1) / alignment * alignment; }

bool is_sendable(at::ScalarType dtype) {
  return dtype >= at::kByte && dtype < at::ScalarType::NumOptions &&
         dtype != at::ScalarType::Undefined && !c10::isQIntType(dtype) && !c10::isBitsType(dtype);
}

// The tensor without gaps in memory, as a copy if it has some.
at::Tensor dense(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || !is_sendable(tensor.scalar_type())) {
    throw UsageError(text("a value of type ", c10::toString(tensor.scalar_type()), " and layout ",
                          text(tensor.layout()), " cannot be sent to another rank"),
                     {.hint = "Only dense tensors can cross ranks: cut the model elsewhere."});
  }
  const at::Tensor plain = tensor.resolve_conj().resolve_neg();
  return plain.is_non_overlapping_and_dense() ? plain : plain.clone();
}

std::string describe(const ValueHeader& value) {
  std::string bytes;
  FixedValue fixed = {};
  fixed.place = static_cast<std::uint8_t>(value.place);
  fixed.dtype = static_cast<std::uint8_t>(value.dtype);
  fixed.dimensions = static_cast<std::uint8_t>(value.sizes.size());
  if (value.wants_gradient) fixed.flags |= wants_gradient_flag;
  if (value.shared) {
    fixed.flags |= shared_flag;
    fixed.owner = static_cast<std::uint8_t>(value.shared->owner);
    fixed.layer = value.shared->value.layer;
    fixed.output = value.shared->value.output;
  }
  append(bytes, fixed);
  for (const auto size : value.sizes) append(bytes, size);
  for (const auto stride : value.strides) append(bytes, stride);
  return bytes;
}

// Whether the strides leave no gaps and no overlaps, and no product overflows.
bool is_dense(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / 32;
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return strides[a] < strides[b]; });
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return true;
  std::int64_t expected = 1;
  for (const std::size_t i : order) {
    if (sizes[i] == 1) continue;
    if (strides[i] != expected || sizes[i] > most / expected) return false;
    expected *= sizes[i];
  }
  return true;
}

ValueHeader read_value(std::string_view& bytes) {
  const auto fixed = take<FixedValue>(bytes);
  ValueHeader value;
  if (fixed.place > static_cast<std::uint8_t>(ValueHeader::Place::Follows))
    refuse_message(text("has a value in place ", int{fixed.place}));
  value.place = static_cast<ValueHeader::Place>(fixed.place);
  value.dtype = static_cast<at::ScalarType>(fixed.dtype);
  if (!is_sendable(value.dtype))
    refuse_message(text("has a value of type number ", int{fixed.dtype}));
  if (fixed.dimensions > most_dimensions)
    refuse_message(text("has a value of ", int{fixed.dimensions}, " dimensions"));
  value.wants_gradient = (fixed.flags & wants_gradient_flag) != 0;
  if ((fixed.flags & shared_flag) != 0) {
    if (fixed.owner > static_cast<std::uint8_t>(nn::SharedWith::Owner::Buffer))
      refuse_message(text("has a value that shares memory with owner ", int{fixed.owner}));
    value.shared = {{fixed.layer, fixed.output}, static_cast<nn::SharedWith::Owner>(fixed.owner)};
  }
  for (int i = 0; i < fixed.dimensions; ++i) value.sizes.push_back(take<std::int64_t>(bytes));
  for (int i = 0; i < fixed.dimensions; ++i) value.strides.push_back(take<std::int64_t>(bytes));
  const auto negative = [](std::int64_t number) { return number < 0; };
  if (std::any_of(value.sizes.begin(), value.sizes.end(), negative) ||
      std::any_of(value.strides.begin(), value.strides.end(), negative) ||
      !is_dense(value.sizes, value.strides))
    refuse_message(text("has a value of shape [", join(value.sizes, ", "), "] and strides [",
                        join(value.strides, ", "), "]"));
  return value;
}

// The values of a message, and where the message holds each of them.
struct PlacedValues {
  std::vector<ValueHeader> headers;
  std::vector<at::Tensor> tensors;  // dense
  bool description_follows = false;
  std::size_t next_first_bytes = first_part_bytes;
};

// The size of a first part that holds all tensors.
std::size_t size_of_whole(const PlacedValues& placed, std::size_t described) {
  std::size_t size = sizeof(Fixed) + described;
  for (std::size_t i = 0; i < placed.headers.size(); ++i) {
    const at::Tensor& tensor = placed.tensors[i];
    if (tensor.defined() && !tensor.is_cpu()) return first_part_bytes;
    if (const std::size_t bytes = placed.headers[i].bytes(); bytes > 0)
      size = aligned(size) + bytes;
  }
  return size > most_first_part_bytes ? first_part_bytes : std::max(size, first_part_bytes);
}

PlacedValues place_values(const Message& message, std::size_t first_bytes) {
  PlacedValues result;
  std::size_t described = 0;
  for (const auto& entry : message) {
    ValueHeader& value = result.headers.emplace_back();
    at::Tensor& tensor = result.tensors.emplace_back();
    value.wants_gradient = entry.wants_gradient;
    value.shared = entry.shared;
    if (entry.value.defined()) {
      tensor = dense(entry.value);
      value.place = ValueHeader::Place::Follows;
      value.dtype = tensor.scalar_type();
      value.sizes = tensor.sizes().vec();
      value.strides = tensor.strides().vec();
    }
    described += sizeof(FixedValue) + value.sizes.size() * 2 * sizeof(std::int64_t);
  }
  result.next_first_bytes = size_of_whole(result, described);
  result.description_follows = sizeof(Fixed) + described > first_bytes;
  std::size_t end = sizeof(Fixed) + (result.description_follows ? 0 : described);
  for (auto& value : result.headers) {
    if (value.place != ValueHeader::Place::Follows) continue;
    const std::size_t bytes = value.bytes();
    if (bytes > 0 && aligned(end) + bytes > first_bytes) continue;
    value.place = ValueHeader::Place::FirstPart;
    if (bytes > 0) end = aligned(end) + bytes;
  }
  return result;
}

void write_first_part(const MessageId& id, const PlacedValues& placed,
                      const std::string& description, const at::Tensor& first) {
  std::string bytes;
  append(bytes, Fixed{magic, version, id.serial, id.transfer.route, id.transfer.micro_batch,
                      id.transfer.way == Transfer::Way::Gradient ? 1U : 0U,
                      placed.description_follows ? 1U : 0U, placed.headers.size(),
                      description.size(), placed.next_first_bytes});
  if (!placed.description_follows) bytes += description;
  char* const begin = static_cast<char*>(first.mutable_data_ptr());
  std::memcpy(begin, bytes.data(), bytes.size());
  std::size_t end = bytes.size();
  const auto fill_until = [&](std::size_t place) {
    std::memset(begin + end, 0, place - end);
    end = place;
  };
  for (std::size_t i = 0; i < placed.headers.size(); ++i) {
    const ValueHeader& value = placed.headers[i];
    // An empty tensor may have no address.
    if (value.place != ValueHeader::Place::FirstPart || value.bytes() == 0) continue;
    const at::Tensor on_cpu = placed.tensors[i].cpu();
    fill_until(aligned(end));
    std::memcpy(begin + end, on_cpu.const_data_ptr(), value.bytes());
    end += value.bytes();
  }
  fill_until(first.nbytes());
}

}  // namespace

std::size_t ValueHeader::bytes() const {
  if (place == Place::None) return 0;
  std::size_t elements = 1;
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return 0;
  for (const auto size : sizes) elements *= static_cast<std::size_t>(size);
  return elements * c10::elementSize(dtype);
}

std::string to_string(const MessageId& id) {
  return text(id.transfer.way == Transfer::Way::Gradient ? "gradient" : "activation", " of route ",
              id.transfer.route, ", micro-batch ", id.transfer.micro_batch, ", step ",
              call_of(id.serial));
}

PackedMessage pack(const MessageId& id, const Message& message, at::Tensor first) {
  const PlacedValues placed = place_values(message, first.nbytes());
  PackedMessage packed;
  packed.next_first_bytes = placed.next_first_bytes;
  std::string description;
  for (const auto& value : placed.headers) description += describe(value);
  write_first_part(id, placed, description, first);
  packed.first = std::move(first);
  if (placed.description_follows) {
    const at::Tensor rest = at::empty({static_cast<std::int64_t>(description.size())}, at::kByte);
    std::memcpy(rest.data_ptr(), description.data(), description.size());
    packed.rest.push_back(rest);
  }
  for (std::size_t i = 0; i < placed.headers.size(); ++i) {
    if (placed.headers[i].place == ValueHeader::Place::Follows)
      packed.rest.push_back(placed.tensors[i]);
  }
  return packed;
}

FirstPart read_first_part(std::string_view bytes) {
  if (bytes.size() < first_part_bytes || bytes.size() > most_first_part_bytes)
    refuse_message(text("begins with ", bytes.size(), " bytes"));
  const auto fixed = take<Fixed>(bytes);
  if (fixed.magic != magic) refuse_message("does not begin with its magic number");
  if (fixed.version != version)
    refuse_message(text("is of version ", fixed.version, ", not ", version));
  if (fixed.values > most_values || fixed.gradient > 1 || fixed.follows > 1 || fixed.route < 0 ||
      fixed.micro_batch < 0 || fixed.next_first_bytes < first_part_bytes ||
      fixed.next_first_bytes > most_first_part_bytes)
    refuse_message("has a header out of range");
  const std::size_t most =
      fixed.values * (sizeof(FixedValue) + most_dimensions * 2 * sizeof(std::int64_t));
  if (fixed.description_bytes > most ||
      (fixed.follows == 0 && fixed.description_bytes > bytes.size()))
    refuse_message(text("has a description of ", fixed.description_bytes, " bytes"));
  return {.id = {.serial = fixed.serial,
                 .transfer = {.route = fixed.route,
                              .micro_batch = fixed.micro_batch,
                              .way = fixed.gradient == 1 ? Transfer::Way::Gradient
                                                         : Transfer::Way::Activation}},
          .values = fixed.values,
          .description_bytes = fixed.description_bytes,
          .next_first_bytes = fixed.next_first_bytes,
          .description_follows = fixed.follows == 1};
}

std::string_view description_in(std::string_view bytes, const FirstPart& first) {
  bytes.remove_prefix(sizeof(Fixed));
  if (first.description_bytes > bytes.size()) refuse_message("ends within its description");
  return bytes.substr(0, first.description_bytes);
}

std::vector<ValueHeader> read_description(std::string_view description, std::size_t values) {
  std::vector<ValueHeader> result;
  for (std::size_t i = 0; i < values; ++i) result.push_back(read_value(description));
  if (!description.empty()) refuse_message(text("has ", description.size(), " bytes too many"));
  return result;
}

std::vector<at::Tensor> tensors_of_first_part(const at::Tensor& bytes, const FirstPart& first,
                                              const std::vector<ValueHeader>& values) {
  char* const begin = static_cast<char*>(bytes.mutable_data_ptr());
  std::size_t end = sizeof(Fixed) + (first.description_follows ? 0 : first.description_bytes);
  std::vector<at::Tensor> result;
  for (const auto& value : values) {
    at::Tensor& tensor = result.emplace_back();
    if (value.place != ValueHeader::Place::FirstPart) continue;
    if (value.bytes() == 0) {
      tensor = at::empty_strided(value.sizes, value.strides, value.dtype);
      continue;
    }
    const std::size_t place = aligned(end);
    if (place > bytes.nbytes() || value.bytes() > bytes.nbytes() - place)
      refuse_message("ends within a tensor");
    end = place + value.bytes();
    tensor = at::from_blob(
        begin + place, value.sizes, value.strides, [bytes](void*) {}, value.dtype);
  }
  return result;
}

}  // namespace trestle::pipeline
