#include "trestle/train/run_folder/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::train {
namespace {

static_assert(std::endian::native == std::endian::little, "events are written as they lie here");

// CRC-32C (Castagnoli), byte by byte.
constexpr std::array<std::uint32_t, 256> crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
    table[byte] = crc;
  }
  return table;
}();

// The checksum in a record is rotated and has a constant added, since data may contain checksums
// themselves.
std::uint32_t masked_crc(const std::string& bytes) {
  std::uint32_t crc = 0xffffffffU;
  for (const char byte : bytes)
    crc = crc_table[(crc ^ static_cast<unsigned char>(byte)) & 0xffU] ^ (crc >> 8);
  crc = ~crc;
  return std::rotr(crc, 15) + 0xa282ead8U;
}

template <class T>
std::string bytes_of(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// The fields of a protocol buffer: number and wire type, then the value.
enum Wire { varint = 0, eight_bytes = 1, length = 2, four_bytes = 5 };

std::string varint_bytes(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}

std::string protobuf_field(int id, Wire wire, const std::string& value) {
  const std::string content = wire == length ? varint_bytes(value.size()) + value : value;
  return varint_bytes(static_cast<std::uint64_t>(id) << 3 | wire) + content;
}

std::string event(std::int64_t step, const std::string& what) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return protobuf_field(1, eight_bytes, bytes_of(now.count())) +
         protobuf_field(2, varint, varint_bytes(static_cast<std::uint64_t>(step))) + what;
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t step) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto name =
      text("events.out.tfevents.", std::chrono::duration_cast<std::chrono::seconds>(now).count(),
           ".trestle.", getpid(), ".");
  int number = 0;
  do path_ = folder / text(name, number++);
  while (std::filesystem::exists(path_));
  append(event(0, protobuf_field(3, length, "brain.Event:2")));
  const std::string start = protobuf_field(1, varint, "\x01");  // SessionLog::START
  if (step > 0) append(event(step + 1, protobuf_field(7, length, start)));
}

void EventFile::add(std::int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [name, value] : scalars)
    summary +=
        protobuf_field(1, length,
                       protobuf_field(1, length, name) +
                           protobuf_field(2, four_bytes, bytes_of(static_cast<float>(value))));
  append(event(step, protobuf_field(5, length, summary)));
}

void EventFile::append(const std::string& event) {
  const std::string size = bytes_of(static_cast<std::uint64_t>(event.size()));
  std::ofstream out(path_, std::ios::binary | std::ios::app);
  out << size << bytes_of(masked_crc(size)) << event << bytes_of(masked_crc(event)) << std::flush;
  if (!out)
    throw FileError(text("cannot be written: ", std::strerror(errno)), {.file = path_.string()});
}

}  // namespace trestle::train
