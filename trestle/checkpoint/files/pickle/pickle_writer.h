#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trestle/checkpoint/files/pickle/storage_types.h"

// Writes a pickle of tensors and plain values as torch.save does: protocol 2. Torch-free. Internal
// to trestle/checkpoint.
//
//     PickleWriter().open_dict().string("step").integer(3).close_dict().finish();
namespace trestle::checkpoint {

class PickleWriter {
 public:
  PickleWriter() : out_("\x80\x02") {}

  PickleWriter& string(std::string_view words) {
    out_ += 'X';
    return little_endian(words.size(), 4).raw(words);
  }
  PickleWriter& integer(std::int64_t value) {
    if (value >= -0x80000000LL && value < 0x80000000LL) {
      out_ += 'J';
      return little_endian(static_cast<std::uint64_t>(value), 4);
    }
    return raw("\x8a\x08").little_endian(static_cast<std::uint64_t>(value), 8);
  }
  PickleWriter& real(double value) {
    out_ += 'G';
    const std::uint64_t bits = __builtin_bswap64(std::bit_cast<std::uint64_t>(value));
    return little_endian(bits, 8);
  }
  PickleWriter& boolean(std::same_as<bool> auto value) { return raw(value ? "\x88" : "\x89"); }
  PickleWriter& none() { return raw("N"); }

  // Keys and values in turn follow, and close_dict().
  PickleWriter& open_dict() { return raw("}("); }
  PickleWriter& open_ordered_dict() { return empty_ordered_dict().raw("("); }
  PickleWriter& close_dict() { return raw("u"); }
  PickleWriter& open_list() { return raw("]("); }
  PickleWriter& close_list() { return raw("e"); }
  PickleWriter& open_tuple() { return raw("("); }
  PickleWriter& close_tuple() { return raw("t"); }

  // torch.Size
  PickleWriter& shape(const std::vector<std::int64_t>& sizes) {
    return global("torch", "Size").tuple(sizes).raw("\x85R");
  }
  // An instance of a class; its attributes follow as in a dict, and close_object().
  PickleWriter& open_object(std::string_view module, std::string_view name) {
    return global(module, name).raw(")\x81}(");
  }
  PickleWriter& close_object() { return raw("ub"); }

  // A contiguous tensor that is a whole storage, "data/<key>".
  PickleWriter& tensor(std::string_view dtype, std::string_view key,
                       const std::vector<std::int64_t>& sizes) {
    std::vector<std::int64_t> strides(sizes.size(), 1);
    std::int64_t elements = 1;
    for (std::size_t i = sizes.size(); i > 0; --i) {
      strides[i - 1] = elements;
      elements *= sizes[i - 1];
    }
    global("torch._utils", "_rebuild_tensor_v2").raw("((").string("storage");
    global("torch", storage_class(dtype)).string(key).string("cpu").integer(elements).raw("tQ");
    integer(0).tuple(sizes).tuple(strides);
    return boolean(false).empty_ordered_dict().raw("tR");  // requires_grad, hooks
  }

  std::string finish() { return std::move(raw(".").out_); }

 private:
  PickleWriter& raw(std::string_view opcodes) {
    out_ += opcodes;
    return *this;
  }
  PickleWriter& global(std::string_view module, std::string_view name) {
    return raw("c").raw(module).raw("\n").raw(name).raw("\n");
  }
  PickleWriter& empty_ordered_dict() { return global("collections", "OrderedDict").raw(")R"); }
  PickleWriter& tuple(const std::vector<std::int64_t>& values) {
    raw("(");
    for (const std::int64_t value : values) integer(value);
    return raw("t");
  }
  PickleWriter& little_endian(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
    return *this;
  }
  // "torch.FloatStorage" without "torch.".
  static std::string_view storage_class(std::string_view dtype) {
    const auto found = std::find_if(storage_types.begin(), storage_types.end(),
                                    [&](const StorageType& type) { return type.dtype == dtype; });
    return found->python.substr(std::string_view("torch.").size());
  }

  std::string out_;
};

}  // namespace trestle::checkpoint
