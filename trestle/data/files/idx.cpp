#include "trestle/data/files/detail/idx.h"

#include <array>
#include <limits>
#include <string>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/data/files/gzip.h"

namespace trestle::data {
namespace {

constexpr int unsigned_byte = 8;

std::uint32_t byte_at(std::string_view bytes, std::size_t at) {
  return static_cast<unsigned char>(bytes[at]);
}

std::int64_t size_at(std::string_view bytes, std::size_t at) {
  return byte_at(bytes, at) << 24 | byte_at(bytes, at + 1) << 16 | byte_at(bytes, at + 2) << 8 |
         byte_at(bytes, at + 3);
}

constexpr std::string_view copy_again = "Copy or download it again.";

template <std::size_t dimensions>
constexpr std::size_t header_bytes = 4 + 4 * dimensions;

// The file's name in messages, and its expected content.
struct Name {
  std::string_view file;
  std::string_view what;

  [[noreturn]] void fail(std::string_view reason, std::string_view hint) const {
    throw FormatError(text("not an IDX file of ", what, ": ", reason),
                      {.file = std::string(file), .hint = std::string(hint)});
  }
};

template <std::size_t dimensions>
struct Sizes {
  std::array<std::int64_t, dimensions> of = {};
  std::int64_t values = 1;  // their product
};

// Checks everything up to the values.
template <std::size_t dimensions>
Sizes<dimensions> parse_header(std::string_view bytes, const Name& name) {
  const auto fail = [&](std::string_view reason, std::string_view hint) {
    name.fail(reason, hint);
  };
  if (bytes.size() < header_bytes<dimensions>) {
    fail(text("it has ", bytes.size(), " bytes, but its header needs ", header_bytes<dimensions>),
         copy_again);
  }
  if (bytes[0] != 0 || bytes[1] != 0 || byte_at(bytes, 2) != unsigned_byte ||
      byte_at(bytes, 3) != dimensions) {
    fail(text("it starts with bytes ", byte_at(bytes, 0), " ", byte_at(bytes, 1), " ",
              byte_at(bytes, 2), " ", byte_at(bytes, 3), " instead of 0 0 ", unsigned_byte, " ",
              dimensions),
         "Images and labels are separate files: are they swapped?");
  }
  Sizes<dimensions> sizes;
  for (std::size_t d = 0; d < dimensions; ++d) {
    const std::int64_t size = sizes.of[d] = size_at(bytes, 4 + 4 * d);
    // Picture sides are far below the largest int; the product is checked for overflow.
    const bool absurd = d > 0 && size > 65'535;
    if (size == 0 || absurd) {
      fail(text("dimension ", d, " has size ", size), copy_again);
    }
    if (sizes.values > std::numeric_limits<std::int64_t>::max() / size) {
      fail(text("its sizes multiply to more than a 64-bit number"), copy_again);
    }
    sizes.values *= size;
  }
  return sizes;
}

// Unpacks the number of bytes that the header requires, and one more if there is one.
template <std::size_t dimensions>
std::string unpacked(std::string_view bytes, const Name& name) {
  const std::string head = gunzip(bytes, name.file, header_bytes<dimensions>);
  const auto values = static_cast<std::size_t>(parse_header<dimensions>(head, name).values);
  return gunzip(bytes, name.file, header_bytes<dimensions> + values + 1);
}

// The sizes and the values. The number of values must equal the product of the sizes.
template <std::size_t dimensions>
std::pair<Sizes<dimensions>, std::string_view> parse(std::string_view bytes, const Name& name) {
  const Sizes<dimensions> sizes = parse_header<dimensions>(bytes, name);
  const std::string_view values = bytes.substr(header_bytes<dimensions>);
  if (std::cmp_not_equal(values.size(), sizes.values)) {
    name.fail(text("its sizes ", join(sizes.of, " x "), " need ", format_count(sizes.values),
                   " bytes, but there are ", format_count(static_cast<std::int64_t>(values.size())),
                   " after the header"),
              copy_again);
  }
  return {sizes, values};
}

void put_size(std::string& bytes, std::int64_t size) {
  for (int shift = 24; shift >= 0; shift -= 8)
    bytes.push_back(static_cast<char>(size >> shift & 255));
}

std::string header(std::initializer_list<std::int64_t> sizes) {
  std::string bytes = {0, 0, unsigned_byte, static_cast<char>(sizes.size())};
  for (const std::int64_t size : sizes) put_size(bytes, size);
  return bytes;
}

constexpr std::int64_t max_size = std::numeric_limits<std::uint32_t>::max();

}  // namespace

IdxImages parse_idx_images(std::string_view bytes, std::string_view file) {
  const Name name{file, "images"};
  if (is_gzip(bytes)) return parse_idx_images(unpacked<3>(bytes, name), file);
  const auto [sizes, values] = parse<3>(bytes, name);
  return {sizes.of[0],
          static_cast<int>(sizes.of[1]),
          static_cast<int>(sizes.of[2]),
          {values.begin(), values.end()}};
}

IdxLabels parse_idx_labels(std::string_view bytes, std::string_view file) {
  const Name name{file, "labels"};
  if (is_gzip(bytes)) return parse_idx_labels(unpacked<1>(bytes, name), file);
  const std::string_view values = parse<1>(bytes, name).second;
  return {values.begin(), values.end()};
}

IdxImages read_idx_images(const std::filesystem::path& path) {
  return parse_idx_images(read_file(path), path.string());
}

IdxLabels read_idx_labels(const std::filesystem::path& path) {
  return parse_idx_labels(read_file(path), path.string());
}

void write_idx_images(const std::filesystem::path& path, const IdxImages& images) {
  const auto samples = static_cast<std::int64_t>(images.pixels.size());
  const bool fits = images.count > 0 && images.count <= max_size && images.rows > 0 &&
                    images.rows <= 65'535 && images.columns > 0 && images.columns <= 65'535 &&
                    images.count * images.rows * images.columns == samples;
  if (!fits) {
    throw UsageError(text("cannot write ", images.count, " images of ", images.rows, " x ",
                          images.columns, " with ", samples, " samples"),
                     {.file = path.string()});
  }
  std::string bytes = header({images.count, images.rows, images.columns});
  bytes.append(images.pixels.begin(), images.pixels.end());
  write_file(path, bytes);
}

void write_idx_labels(const std::filesystem::path& path, const IdxLabels& labels) {
  const auto count = static_cast<std::int64_t>(labels.size());
  if (count == 0 || count > max_size) {
    throw UsageError(text("cannot write ", count, " labels"), {.file = path.string()});
  }
  std::string bytes = header({count});
  bytes.append(labels.begin(), labels.end());
  write_file(path, bytes);
}

}  // namespace trestle::data
