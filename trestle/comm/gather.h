#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trestle/comm/group.h"

// Typed values over all_gather_bytes() and broadcast_bytes().
namespace trestle::comm {

// Values as bytes. A value is trivially copyable (numbers, enums, plain structs), a std::string, or
// a std::vector, std::optional, std::pair or std::tuple of values.
class Packer {
 public:
  template <class T>
  void add(const T& value) {
    static_assert(!std::is_pointer_v<T> && !std::is_same_v<T, std::string_view>);
    if constexpr (std::is_trivially_copyable_v<T>) {
      bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    } else {
      add_parts(value);
    }
  }
  std::string take() { return std::move(bytes_); }

 private:
  void add_parts(const std::string& value) {
    add(static_cast<std::uint64_t>(value.size()));
    bytes_ += value;
  }
  template <class T>
  void add_parts(const std::vector<T>& values) {
    add(static_cast<std::uint64_t>(values.size()));
    for (const T& value : values) add(value);
  }
  template <class T>
  void add_parts(const std::optional<T>& value) {
    add(value.has_value());
    if (value) add(*value);
  }
  template <class A, class B>
  void add_parts(const std::pair<A, B>& values) {
    add(values.first);
    add(values.second);
  }
  template <class... T>
  void add_parts(const std::tuple<T...>& values) {
    std::apply([&](const T&... value) { (add(value), ...); }, values);
  }

  std::string bytes_;
};

// Reads what a Packer wrote. ok() is false once the bytes did not match the types that were read.
class Unpacker {
 public:
  explicit Unpacker(const std::string& bytes) : bytes_(bytes) {}

  template <class T>
  void read(T& value) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      if (!has(sizeof value)) return;
      std::memcpy(&value, bytes_.data() + at_, sizeof value);
      at_ += sizeof value;
    } else {
      read_parts(value);
    }
  }
  bool ok() const { return ok_; }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  bool has(std::uint64_t size) {
    ok_ = ok_ && size <= bytes_.size() - at_;
    return ok_;
  }
  // A count of elements of at least one byte each.
  std::uint64_t read_count() {
    std::uint64_t count = 0;
    read(count);
    return has(count) ? count : 0;
  }
  void read_parts(std::string& value) {
    const auto size = static_cast<std::size_t>(read_count());
    value = bytes_.substr(at_, size);
    at_ += size;
  }
  template <class T>
  void read_parts(std::vector<T>& values) {
    values.clear();
    for (std::uint64_t left = read_count(); left > 0 && ok_; --left) {
      T value{};
      read(value);
      values.push_back(std::move(value));
    }
  }
  template <class T>
  void read_parts(std::optional<T>& value) {
    bool has_value = false;
    read(has_value);
    if (has_value) read(value.emplace());
  }
  template <class A, class B>
  void read_parts(std::pair<A, B>& values) {
    read(values.first);
    read(values.second);
  }
  template <class... T>
  void read_parts(std::tuple<T...>& values) {
    std::apply([&](T&... value) { (read(value), ...); }, values);
  }

  const std::string& bytes_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

// A value as the bytes of one message.
template <class T>
std::string pack(const T& value) {
  Packer packer;
  packer.add(value);
  return packer.take();
}

// Fails the world: the message of group rank `rank` has `size` bytes that are not of the type.
// Throws RankError.
[[noreturn]] void throw_malformed(const Group& group, int rank, std::size_t size);

// The value in the message of group rank `rank`. Throws as throw_malformed().
template <class T>
T unpack(const Group& group, int rank, const std::string& bytes) {
  T value{};
  Unpacker unpacker(bytes);
  unpacker.read(value);
  if (!unpacker.ok() || !unpacker.at_end()) throw_malformed(group, rank, bytes.size());
  return value;
}

// Gathers one value of each rank, in the order of ranks; all ranks call it with the same type.
// Waits. Throws RankError if a rank's message is malformed, and as all_gather_bytes().
//
//   const auto rows = trestle::comm::all_gather_values(
//       group, std::vector<std::pair<int, double>>{{stage, seconds}});
template <class T>
std::vector<T> all_gather_values(const Group& group, const T& own) {
  const std::vector<std::string> all = group.all_gather_bytes(pack(own));
  std::vector<T> values;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    values.push_back(unpack<T>(group, static_cast<int>(rank), all[rank]));
  return values;
}

// The value of group rank `from`, on all ranks; all ranks call it with the same type. The value of
// any other rank is not sent. Waits. Throws as all_gather_values().
template <class T>
T broadcast_value(const Group& group, const T& own, int from) {
  return unpack<T>(group, from, group.broadcast_bytes(pack(own), from));
}

// The first rank whose text is not rank 0's.
struct RankDifference {
  int rank = 0;  // the group's number
  std::string first, other;
};

// Compares a text of each rank with rank 0's; all ranks get the same result. Waits.
std::optional<RankDifference> find_difference(const Group& group, const std::string& own);

// Two ranks that gave the same text.
struct RankClash {
  int first = 0, second = 0;  // the group's numbers
  std::string value;
};

// The first text of a rank that a lower rank gave too; all ranks get the same result. A rank may
// repeat its own texts. Waits.
std::optional<RankClash> find_clash(const Group& group, const std::vector<std::string>& own);

}  // namespace trestle::comm
