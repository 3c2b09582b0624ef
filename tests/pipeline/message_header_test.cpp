// The header of a message between ranks describes everything that may change from message to
// message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/pipeline/support.h"
#include "trestle/base/error.h"
#include "trestle/pipeline/transport/message_header.h"

namespace trestle::pipeline {
namespace {

using Way = Transfer::Way;

std::string bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()),
          static_cast<std::size_t>(tensor.nbytes())};
}

struct Unpacked {
  FirstPart first;
  std::vector<ValueHeader> values;
  std::vector<at::Tensor> tensors;
};

at::Tensor first_part(std::size_t bytes = first_part_bytes) {
  return torch::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
}

// Unpacks as the receiver does. Tensors that follow are used directly.
Unpacked unpack(const PackedMessage& packed) {
  const std::string bytes = bytes_of(packed.first);
  Unpacked result;
  result.first = read_first_part(bytes);
  std::size_t next = 0;
  const std::string description = result.first.description_follows
                                      ? bytes_of(packed.rest.at(next++))
                                      : std::string(description_in(bytes, result.first));
  result.values = read_description(description, result.first.values);
  result.tensors = tensors_of_first_part(packed.first, result.first, result.values);
  for (std::size_t i = 0; i < result.values.size(); ++i) {
    if (result.values[i].place == ValueHeader::Place::Follows)
      result.tensors[i] = packed.rest.at(next++);
  }
  EXPECT_EQ(next, packed.rest.size());
  return result;
}

void expect_round_trip(const Message& message, std::size_t bytes = first_part_bytes) {
  const MessageId id{.serial = 41, .transfer = {3, 5, Way::Gradient}};
  const auto unpacked = unpack(pack(id, message, first_part(bytes)));
  EXPECT_EQ(unpacked.first.id, id);
  ASSERT_EQ(unpacked.values.size(), message.size());
  for (std::size_t i = 0; i < message.size(); ++i) {
    SCOPED_TRACE(i);
    const at::Tensor& sent = message[i].value;
    const at::Tensor& came = unpacked.tensors[i];
    EXPECT_EQ(unpacked.values[i].wants_gradient, message[i].wants_gradient);
    ASSERT_EQ(sent.defined(), came.defined());
    EXPECT_EQ(unpacked.values[i].shared.has_value(), message[i].shared.has_value());
    if (!sent.defined()) continue;
    EXPECT_EQ(unpacked.values[i].sizes, sent.sizes().vec());
    EXPECT_EQ(unpacked.values[i].dtype, sent.scalar_type());
    EXPECT_EQ(came.sizes(), sent.sizes());
    EXPECT_TRUE(at::equal(came, sent));
    if (sent.is_non_overlapping_and_dense()) {
      EXPECT_EQ(came.strides(), sent.strides());
    }
  }
}

TEST(MessageHeader, CarriesShapesDtypesStridesNoneAndGradientRequests) {
  torch::manual_seed(3);
  expect_round_trip({});
  expect_round_trip({{.value = at::Tensor()}});
  expect_round_trip({{.value = torch::randn({3, 4}), .wants_gradient = true},
                     {.value = at::Tensor(), .wants_gradient = true},
                     {.value = torch::arange(7)},
                     {.value = torch::tensor(2.5, at::kDouble)},
                     {.value = torch::randn({2, 3}).to(at::kBFloat16)},
                     {.value = torch::randn({5}) > 0},
                     {.value = torch::empty({0, 3})},
                     {.value = torch::randn({4}, at::kComplexFloat)}});
  // Channels last, transposed, with gaps, expanded, a slice of a larger tensor, a conjugate.
  expect_round_trip(
      {{.value = torch::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)},
       {.value = torch::randn({6, 2}).t()},
       {.value = torch::randn({6, 8}).slice(1, 0, 8, 2)},
       {.value = torch::randn({1, 3}).expand({4, 3})},
       {.value = torch::randn({8, 3}).narrow(0, 2, 3)},
       {.value = torch::conj(torch::randn({4}, at::kComplexFloat))}});
}

TEST(MessageHeader, SendsLargeTensorsSeparately) {
  const auto packed =
      pack({}, {{.value = torch::randn({10})}, {.value = torch::randn({5000})}}, first_part());
  ASSERT_EQ(packed.rest.size(), 1U);
  EXPECT_EQ(packed.rest[0].numel(), 5000);
  EXPECT_EQ(packed.first.numel(), static_cast<std::int64_t>(first_part_bytes));
  expect_round_trip({{.value = torch::randn({10})}, {.value = torch::randn({5000})}});
}

// The next message like it fits into its first part, at aligned places.
TEST(MessageHeader, AnnouncesAFirstPartForTheWholeMessage) {
  const Message message = {{.value = torch::randn({3})},
                           {.value = torch::randn({5000}), .wants_gradient = true},
                           {.value = torch::randn({7, 11}).t()},
                           {.value = torch::empty({0})}};
  const PackedMessage parts = pack({}, message, first_part());
  EXPECT_EQ(parts.rest.size(), 1U);
  EXPECT_GT(parts.next_first_bytes, 20000U);
  const PackedMessage whole = pack({}, message, first_part(parts.next_first_bytes));
  EXPECT_TRUE(whole.rest.empty());
  EXPECT_EQ(whole.next_first_bytes, parts.next_first_bytes);
  for (const at::Tensor& tensor : unpack(whole).tensors) {
    if (tensor.numel() == 0) continue;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64, 0U);
  }
  expect_round_trip(message, parts.next_first_bytes);
  expect_round_trip(message, parts.next_first_bytes - 64);  // one tensor follows
  expect_round_trip({{.value = torch::randn({2})}}, parts.next_first_bytes);
}

TEST(MessageHeader, KeepsTheLeastFirstPartForLargeMessagesAndDevices) {
  const auto announced = [](const at::Tensor& tensor) {
    return pack({}, {{.value = tensor}}, first_part()).next_first_bytes;
  };
  EXPECT_EQ(announced(torch::ones({4})), first_part_bytes);
  EXPECT_GT(announced(torch::ones({most_first_part_bytes / 4 - 100})), first_part_bytes);
  EXPECT_EQ(announced(torch::ones({most_first_part_bytes / 4})), first_part_bytes);
  const at::Device device = virtual_devices(1)[0].torch;
  EXPECT_EQ(announced(torch::ones({4000}).to(device)), first_part_bytes);
}

TEST(MessageHeader, SendsLongDescriptionSeparately) {
  Message message;
  for (int i = 0; i < 300; ++i) message.push_back({.value = torch::full({2, 1, 3}, i)});
  EXPECT_TRUE(read_first_part(bytes_of(pack({}, message, first_part()).first)).description_follows);
  expect_round_trip(message);
}

TEST(MessageHeader, CarriesOwnerOfSharedMemory) {
  const StageValue value{.value = torch::ones({2}),
                         .shared = nn::SharedWith{{4, 1}, nn::SharedWith::Owner::Parameter}};
  const auto unpacked = unpack(pack({}, {value}, first_part()));
  ASSERT_TRUE(unpacked.values[0].shared.has_value());
  EXPECT_EQ(unpacked.values[0].shared->value, (nn::ValueId{4, 1}));
  EXPECT_EQ(unpacked.values[0].shared->owner, nn::SharedWith::Owner::Parameter);
}

TEST(MessageHeader, RefusesSparseTensors) {
  EXPECT_THAT(support::message_of<UsageError>(
                  [] { pack({}, {{.value = torch::eye(3).to_sparse()}}, first_part()); }),
              ::testing::HasSubstr("Only dense tensors can cross ranks"));
}

// Random bytes are read or refused, never read or allocated out of bounds.
TEST(MessageHeader, FuzzedBytesAreReadOrRefused) {
  std::mt19937 random(5);
  const Message message = {{.value = torch::randn({3, 4}), .wants_gradient = true},
                           {.value = torch::randn({2, 3, 4, 5})},
                           {.value = at::Tensor()},
                           {.value = torch::arange(4000)}};
  const std::string good = bytes_of(
      pack({.serial = 1, .transfer = {0, 1, Way::Activation}}, message, first_part()).first);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (int change = 0; change <= static_cast<int>(random() % 4); ++change)
      bytes[random() % 400] = static_cast<char>(random());
    try {
      const FirstPart first = read_first_part(bytes);
      if (first.description_follows) continue;
      const auto values = read_description(description_in(bytes, first), first.values);
      at::Tensor copy = first_part(bytes.size());
      std::memcpy(copy.data_ptr(), bytes.data(), bytes.size());
      const char* const end = static_cast<const char*>(copy.const_data_ptr()) + copy.nbytes();
      for (const at::Tensor& tensor : tensors_of_first_part(copy, first, values)) {
        if (!tensor.defined() || tensor.numel() == 0) continue;
        EXPECT_LE(static_cast<const char*>(tensor.const_data_ptr()) + tensor.nbytes(), end);
      }
    } catch (const FormatError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 5000);
  EXPECT_THROW(read_first_part("short"), FormatError);
}

}  // namespace
}  // namespace trestle::pipeline
