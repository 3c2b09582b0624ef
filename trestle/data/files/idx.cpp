#include "trestle/data/files/idx.h"

#include <array>
#include <limits>
#include <string>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"

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

// Checks everything up to the values, and that exactly as many bytes follow as the sizes say.
template <std::size_t dimensions>
std::array<std::int64_t, dimensions> parse_header(std::string_view bytes, std::string_view name,
                                                  std::string_view what) {
  auto fail = [&](std::string_view reason, std::string_view hint) {
    throw FormatError(text("not an IDX file of ", what, ": ", reason),
                      {.file = std::string(name), .hint = std::string(hint)});
  };
  constexpr std::string_view copy_again = "Copy or download it again.";
  if (bytes.starts_with("\x1f\x8b")) {
    fail("it is gzip-compressed", "Unpack it first: gunzip " + std::string(name));
  }
  constexpr std::size_t header_bytes = 4 + 4 * dimensions;
  if (bytes.size() < header_bytes) {
    fail(text("it has ", bytes.size(), " bytes, the header alone has ", header_bytes), copy_again);
  }
  if (bytes[0] != 0 || bytes[1] != 0 || byte_at(bytes, 2) != unsigned_byte ||
      byte_at(bytes, 3) != dimensions) {
    fail(text("it starts with bytes ", byte_at(bytes, 0), " ", byte_at(bytes, 1), " ",
              byte_at(bytes, 2), " ", byte_at(bytes, 3), " instead of 0 0 ", unsigned_byte, " ",
              dimensions),
         "Images and labels are separate files: are they swapped?");
  }
  std::array<std::int64_t, dimensions> sizes = {};
  const auto rest = static_cast<std::int64_t>(bytes.size() - header_bytes);
  std::int64_t wanted = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    sizes[d] = size_at(bytes, 4 + 4 * d);
    // Picture sides stay far below what an int holds; the product is
    // stopped before it can overflow.
    const bool absurd = d > 0 && sizes[d] > 65'535;
    if (sizes[d] == 0 || absurd) {
      fail(text("dimension ", d, " has size ", sizes[d]), copy_again);
    }
    if (wanted > std::numeric_limits<std::int64_t>::max() / sizes[d]) {
      fail(text("its sizes multiply to more than a 64-bit number"), copy_again);
    }
    wanted *= sizes[d];
  }
  if (wanted != rest) {
    fail(text("its sizes ", join(sizes, " x "), " need ", format_count(wanted),
              " bytes, after the header there are ", format_count(rest)),
         copy_again);
  }
  return sizes;
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

IdxImages parse_idx_images(std::string_view bytes, std::string_view name) {
  const auto [count, rows, columns] = parse_header<3>(bytes, name, "images");
  const std::string_view values = bytes.substr(16);
  return {count, static_cast<int>(rows), static_cast<int>(columns), {values.begin(), values.end()}};
}

IdxLabels parse_idx_labels(std::string_view bytes, std::string_view name) {
  parse_header<1>(bytes, name, "labels");
  const std::string_view values = bytes.substr(8);
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
