#include "trestle/tokens/tokenizers/sentencepiece_check.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trestle/base/error.h"

namespace trestle::tokens {
namespace {

[[noreturn]] void refuse_model(std::string_view what, const std::string& file) {
  throw FormatError("not a SentencePiece model: " + std::string(what), {.file = file});
}

// The fields of a protocol buffer (https://protobuf.dev/programming-guides/encoding/).
class ProtoReader {
 public:
  ProtoReader(std::string_view content, const std::string& file) : left_(content), file_(file) {}

  // Reads the next field; false at the end. The bytes are empty unless it has a length.
  bool next(std::uint64_t* number, std::string_view* bytes) {
    if (left_.empty()) return false;
    const std::uint64_t tag = varint();
    *number = tag >> 3;
    *bytes = {};
    switch (tag & 7) {
      case 0:
        varint();
        break;
      case 1:
        take(8);
        break;
      case 2:
        *bytes = take(varint());
        break;
      case 5:
        take(4);
        break;
      default:
        refuse_model("an unknown type of field", file_);
    }
    return true;
  }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    constexpr unsigned most_bits = 63;
    for (unsigned shift = 0; shift <= most_bits; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    refuse_model("a number is too long", file_);
  }

  std::string_view take(std::uint64_t size) {
    if (size > left_.size()) refuse_model("the file is cut off", file_);
    const std::string_view taken = left_.substr(0, static_cast<std::size_t>(size));
    left_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view left_;
  const std::string& file_;
};

// The characters' trie: a 32-bit size, the array of that size, and the normalized texts, each with
// a zero at its end. The layout of the array is that of Darts (Yata 2011, double-array trie).
class CharactersTrie {
 public:
  CharactersTrie(std::string_view blob, const std::string& file) : file_(file) {
    constexpr std::size_t word = 4;
    if (blob.size() < word) refuse();
    const std::size_t size = number_at(blob, 0);
    if (size % word != 0 || size > blob.size() - word) refuse();
    for (std::size_t at = 0; at < size; at += word) units_.push_back(number_at(blob, word + at));
    texts_ = blob.substr(word + size);
  }

  // Visits every unit that some text can reach.
  void check() const {
    constexpr std::size_t labels = 256;
    if (units_.empty()) refuse();
    std::vector<bool> seen(units_.size());
    std::vector<std::size_t> to_visit = {0};
    while (!to_visit.empty()) {
      const std::size_t place = to_visit.back();
      to_visit.pop_back();
      const std::size_t base = place ^ offset(units_[place]);
      if ((base | (labels - 1)) >= units_.size()) refuse();
      if (place != 0 && has_leaf(units_[place])) check_text(units_[base]);
      for (std::size_t label = 0; label < labels; ++label) {
        const std::size_t child = base ^ label;
        if (seen[child] || (units_[child] & (high_bit | 0xFFU)) != label) continue;
        seen[child] = true;
        to_visit.push_back(child);
      }
    }
  }

 private:
  static constexpr std::uint32_t high_bit = 1U << 31;

  static std::uint32_t number_at(std::string_view bytes, std::size_t at) {
    std::uint32_t value = 0;
    for (unsigned i = 0; i < 4; ++i) {
      value |= std::uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
    }
    return value;
  }
  static std::size_t offset(std::uint32_t unit) {
    return static_cast<std::size_t>((unit >> 10) << ((unit & (1U << 9)) >> 6));
  }
  static bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) == 1; }

  void check_text(std::uint32_t unit) const {
    const std::size_t begin = unit & ~high_bit;
    if (begin >= texts_.size() || texts_.find('\0', begin) == std::string_view::npos) refuse();
  }

  [[noreturn]] void refuse() const {
    refuse_model("its table of normalized characters is damaged", file_);
  }

  std::vector<std::uint32_t> units_;
  std::string_view texts_;
  const std::string& file_;
};

}  // namespace

void check_sentencepiece(std::string_view content, const std::string& file) {
  // Of ModelProto: normalizer_spec and denormalizer_spec; of those: precompiled_charsmap.
  constexpr std::uint64_t normalizer_field = 3;
  constexpr std::uint64_t denormalizer_field = 5;
  constexpr std::uint64_t table_field = 2;
  std::uint64_t number = 0;
  std::string_view bytes;
  for (ProtoReader model(content, file); model.next(&number, &bytes);) {
    if (number != normalizer_field && number != denormalizer_field) continue;
    std::string_view table;
    for (ProtoReader spec(bytes, file); spec.next(&number, &table);) {
      if (number == table_field && !table.empty()) CharactersTrie(table, file).check();
    }
  }
}

}  // namespace trestle::tokens
