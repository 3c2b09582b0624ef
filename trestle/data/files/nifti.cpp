#include "trestle/data/files/nifti.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/data/files/gzip.h"

namespace trestle::data {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are stored as they are");

constexpr std::size_t header_bytes_1 = 348, header_bytes_2 = 540;
constexpr std::string_view copy_it = "Copy it again, or export it again from its source.";

[[noreturn]] void refuse_nifti(std::string_view name, std::string_view what,
                               std::string_view hint = copy_it) {
  throw FormatError(text("cannot read the NIfTI file: ", what),
                    {.file = std::string(name), .hint = std::string(hint)});
}

template <class T>
T number_at(std::string_view bytes, std::size_t at, bool swapped) {
  std::array<char, sizeof(T)> stored;
  std::memcpy(stored.data(), bytes.data() + at, sizeof(T));
  if (swapped) std::ranges::reverse(stored);
  return std::bit_cast<T>(stored);
}

// The offsets of the fields that are read, in the two versions of the header.
struct Layout {
  std::size_t size, dim, datatype, pixdim, offset, slope, inter, units, codes, qform, srow;
};
constexpr Layout layout_1 = {348, 40, 70, 76, 108, 112, 116, 123, 252, 256, 280};
constexpr Layout layout_2 = {540, 16, 12, 104, 168, 176, 184, 500, 344, 352, 400};

struct VoxelKind {
  int code;
  std::size_t bytes;
  const char* name;
};
constexpr std::array voxel_kinds = {VoxelKind{2, 1, "uint8"},    VoxelKind{4, 2, "int16"},
                                    VoxelKind{8, 4, "int32"},    VoxelKind{16, 4, "float32"},
                                    VoxelKind{64, 8, "float64"}, VoxelKind{256, 1, "int8"},
                                    VoxelKind{512, 2, "uint16"}, VoxelKind{768, 4, "uint32"},
                                    VoxelKind{1024, 8, "int64"}, VoxelKind{1280, 8, "uint64"}};

struct NiftiHeader {
  VolumeInfo info;
  VoxelKind kind = {};
  bool swapped = false;
  double slope = 1, inter = 0;
  std::size_t offset = 0;  // of the first voxel
  std::size_t bytes = 0;   // of all voxels
};

class HeaderReader {
 public:
  HeaderReader(std::string_view bytes, std::string_view name) : bytes_(bytes), name_(name) {}

  NiftiHeader read() {
    find_version();
    read_dimensions();
    read_kind();
    read_space();
    read_scaling();
    read_extent();
    return std::move(header_);
  }

 private:
  template <class T>
  T at(std::size_t place) const {
    return number_at<T>(bytes_, place, header_.swapped);
  }
  // A real number: 4 bytes in the first version, 8 in the second.
  double real(std::size_t first, std::size_t index = 0) const {
    return version_ == 1 ? static_cast<double>(at<float>(first + 4 * index))
                         : at<double>(first + 8 * index);
  }

  void find_version() {
    if (bytes_.size() < header_bytes_1)
      refuse_nifti(name_,
                   text("it has ", bytes_.size(), " bytes, but its header needs ", header_bytes_1));
    for (const bool swapped : {false, true}) {
      const auto size = number_at<std::int32_t>(bytes_, 0, swapped);
      header_.swapped = swapped;
      if (size == 348 || size == 540) {
        version_ = size == 348 ? 1 : 2;
        break;
      }
    }
    if (version_ == 0)
      refuse_nifti(
          name_, "it does not begin with the size of a NIfTI header, 348 or 540",
          "Volumes are .nii, .nii.gz and .npy files. DICOM folders are converted with dcm2niix.");
    if (version_ == 2 && bytes_.size() < header_bytes_2)
      refuse_nifti(name_,
                   text("it has ", bytes_.size(), " bytes, but its header needs ", header_bytes_2));
    layout_ = version_ == 1 ? layout_1 : layout_2;
    const std::string_view magic = bytes_.substr(version_ == 1 ? 344 : 4, 4);
    if (magic.starts_with("ni"))
      refuse_nifti(
          name_, "it is the header of a pair of .hdr and .img",
          "Write one file, for example with nibabel: nibabel.save(nibabel.load(name), 'x.nii').");
    if (magic != std::string_view(version_ == 1 ? "n+1\0" : "n+2\0", 4))
      refuse_nifti(name_, "its header has no mark 'n+1' or 'n+2'");
  }

  std::int64_t dimension(std::size_t index) const {
    return version_ == 1 ? at<std::int16_t>(layout_.dim + 2 * index)
                         : at<std::int64_t>(layout_.dim + 8 * index);
  }

  void read_dimensions() {
    const std::int64_t count = dimension(0);
    if (count < 1 || count > 7)
      refuse_nifti(name_, text("it claims ", count, " dimensions, not 1 to 7"));
    std::array<std::int64_t, 7> sides;
    sides.fill(1);
    for (std::size_t d = 0; std::cmp_less(d, count); ++d) {
      sides[d] = dimension(d + 1);
      if (sides[d] < 1) refuse_nifti(name_, text("its dimension ", d + 1, " has size ", sides[d]));
    }
    if (sides[5] > 1 || sides[6] > 1 || (sides[3] > 1 && sides[4] > 1))
      refuse_nifti(name_, text("it has ", count, " dimensions of ", join(sides, " x "), " values"),
                   "Three dimensions can be read, and one more for channels.");
    header_.info.channels = sides[3] * sides[4];
    header_.info.sides = {sides[2], sides[1], sides[0]};
  }

  void read_kind() {
    const int code = at<std::int16_t>(layout_.datatype);
    const auto* kind = std::ranges::find(voxel_kinds, code, &VoxelKind::code);
    if (kind == voxel_kinds.end())
      refuse_nifti(
          name_, text("its values have the data type ", code),
          "Whole numbers and real numbers can be read (data types 2, 4, 8, 16, 64, 256, 512, 768, "
          "1024, 1280), but no colours and complex numbers.");
    header_.kind = *kind;
  }

  void read_space() {
    VolumeSpace space;
    for (std::size_t i = 0; i < space.pixdim.size(); ++i) space.pixdim[i] = real(layout_.pixdim, i);
    space.units = version_ == 1 ? at<std::uint8_t>(layout_.units) : at<std::int32_t>(layout_.units);
    space.units &= 0xff;
    const auto code = [&](std::size_t index) {
      return version_ == 1 ? at<std::int16_t>(layout_.codes + 2 * index)
                           : at<std::int32_t>(layout_.codes + 4 * index);
    };
    space.qform_code = code(0);
    space.sform_code = code(1);
    for (std::size_t i = 0; i < space.qform.size(); ++i) space.qform[i] = real(layout_.qform, i);
    for (std::size_t i = 0; i < space.srow.size(); ++i) space.srow[i] = real(layout_.srow, i);
    const std::array<double, 3> spacing = space.spacing();
    const bool positive =
        std::ranges::all_of(spacing, [](double side) { return std::isfinite(side) && side > 0; });
    if (!positive)
      refuse_nifti(name_, text("its spacing (pixdim) is ", describe_spacing(spacing)),
                   "Distances are finite and larger than 0: repair the header.");
    const std::array<double, 12> affine = space.affine();
    if (!std::ranges::all_of(affine, [](double value) { return std::isfinite(value); }))
      refuse_nifti(name_, "its affine (sform or qform) has numbers that are not finite");
    header_.info.space = space;
  }

  void read_scaling() {
    const double slope = real(layout_.slope), inter = real(layout_.inter);
    if (slope == 0 || std::isnan(slope)) return;
    if (!std::isfinite(slope) || !std::isfinite(inter))
      refuse_nifti(name_, text("its scaling is scl_slope ", slope, ", scl_inter ", inter));
    header_.slope = slope;
    header_.inter = inter;
  }

  void read_extent() {
    const double offset = version_ == 1 ? real(layout_.offset)
                                        : static_cast<double>(at<std::int64_t>(layout_.offset));
    const double least = static_cast<double>(layout_.size + 4);
    constexpr double most = 1e12;
    if (offset != 0 && !(offset >= least && offset <= most && offset == std::floor(offset)))
      refuse_nifti(name_,
                   text("its voxels begin at byte ", offset, ", not at byte ", least, " or later"));
    header_.offset = static_cast<std::size_t>(offset == 0 ? least : offset);
    constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max() / 16;
    std::int64_t bytes = static_cast<std::int64_t>(header_.kind.bytes);
    const Sides& sides = header_.info.sides;
    for (const std::int64_t side : {header_.info.channels, sides[0], sides[1], sides[2]}) {
      if (bytes > largest / side)
        refuse_nifti(name_, text("its sizes ", header_.info.channels, " x ", join(sides, " x "),
                                 " multiply to more than a 64-bit number"));
      bytes *= side;
    }
    header_.bytes = static_cast<std::size_t>(bytes);
  }

  std::string_view bytes_, name_;
  int version_ = 0;
  Layout layout_ = {};
  NiftiHeader header_;
};

[[noreturn]] void refuse_size(const NiftiHeader& header, std::string_view name,
                              std::string_view have) {
  refuse_nifti(
      name, text("its header claims ", header.info.channels, " x ", join(header.info.sides, " x "),
                 " values of ", header.kind.name, " behind byte ", header.offset, ", that is ",
                 format_count(static_cast<std::int64_t>(header.offset + header.bytes)),
                 " bytes, but ", have));
}

template <class T>
void scale_values(const NiftiHeader& header, std::string_view bytes, std::vector<float>& values) {
  const bool plain = header.slope == 1 && header.inter == 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T stored = number_at<T>(bytes, i * sizeof(T), header.swapped);
    values[i] = plain
                    ? static_cast<float>(stored)
                    : static_cast<float>(static_cast<double>(stored) * header.slope + header.inter);
  }
}

std::vector<float> values_of(const NiftiHeader& header, std::string_view bytes) {
  std::vector<float> values(header.bytes / header.kind.bytes);
  switch (header.kind.code) {
    case 2:
      scale_values<std::uint8_t>(header, bytes, values);
      break;
    case 4:
      scale_values<std::int16_t>(header, bytes, values);
      break;
    case 8:
      scale_values<std::int32_t>(header, bytes, values);
      break;
    case 16:
      scale_values<float>(header, bytes, values);
      break;
    case 64:
      scale_values<double>(header, bytes, values);
      break;
    case 256:
      scale_values<std::int8_t>(header, bytes, values);
      break;
    case 512:
      scale_values<std::uint16_t>(header, bytes, values);
      break;
    case 768:
      scale_values<std::uint32_t>(header, bytes, values);
      break;
    case 1024:
      scale_values<std::int64_t>(header, bytes, values);
      break;
    default:
      scale_values<std::uint64_t>(header, bytes, values);
      break;
  }
  return values;
}

// The bytes of the file up to its last voxel.
std::string unpack(std::string_view bytes, std::string_view name) {
  const NiftiHeader header = HeaderReader(gunzip(bytes, name, header_bytes_2), name).read();
  const std::size_t wanted = header.offset + header.bytes;
  constexpr std::size_t best_ratio = 1032;  // of deflate
  if (wanted / best_ratio > bytes.size())
    refuse_size(header, name,
                text("there are ", format_count(std::ssize(bytes)), " compressed bytes"));
  return gunzip(bytes, name, wanted);
}

void put(std::string& bytes, std::size_t at, auto value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

std::string header_of(const Volume& volume, VoxelType type) {
  const VolumeSpace space = volume.space.value_or(VolumeSpace{});
  std::string header(352, '\0');
  put(header, 0, std::int32_t{348});
  const std::array<std::int64_t, 5> dim = {volume.channels > 1 ? 4 : 3, volume.sides[2],
                                           volume.sides[1], volume.sides[0], volume.channels};
  for (std::size_t d = 0; d < 8; ++d)
    put(header, layout_1.dim + 2 * d, static_cast<std::int16_t>(d < dim.size() ? dim[d] : 1));
  const int code = type == VoxelType::UInt8 ? 2 : type == VoxelType::Int16 ? 4 : 16;
  const int bits = type == VoxelType::UInt8 ? 8 : type == VoxelType::Int16 ? 16 : 32;
  put(header, layout_1.datatype, static_cast<std::int16_t>(code));
  put(header, layout_1.datatype + 2, static_cast<std::int16_t>(bits));
  for (std::size_t i = 0; i < space.pixdim.size(); ++i)
    put(header, layout_1.pixdim + 4 * i, static_cast<float>(space.pixdim[i]));
  put(header, layout_1.offset, 352.0f);
  put(header, layout_1.slope, 1.0f);
  put(header, layout_1.units, static_cast<std::uint8_t>(space.units));
  put(header, layout_1.codes, static_cast<std::int16_t>(space.qform_code));
  put(header, layout_1.codes + 2, static_cast<std::int16_t>(space.sform_code));
  for (std::size_t i = 0; i < space.qform.size(); ++i)
    put(header, layout_1.qform + 4 * i, static_cast<float>(space.qform[i]));
  for (std::size_t i = 0; i < space.srow.size(); ++i)
    put(header, layout_1.srow + 4 * i, static_cast<float>(space.srow[i]));
  constexpr std::string_view description = "trestle";
  description.copy(header.data() + 148, description.size());
  header.replace(344, 4, std::string_view("n+1\0", 4));
  return header;
}

template <class T>
void append_values(std::string& bytes, const Volume& volume, std::string_view name) {
  for (const float value : volume.values) {
    const auto stored = static_cast<double>(value);
    const bool fits =
        !std::is_integral_v<T> || (stored >= static_cast<double>(std::numeric_limits<T>::min()) &&
                                   stored <= static_cast<double>(std::numeric_limits<T>::max()) &&
                                   stored == std::floor(stored));
    if (!fits)
      throw UsageError(
          text("cannot store the value ", value, " as a whole number of ", sizeof(T), " bytes"),
          {.file = std::string(name)});
    const T number = static_cast<T>(value);
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
}

}  // namespace

Volume parse_nifti(std::string_view bytes, std::string_view name) {
  if (is_gzip(bytes)) return parse_nifti(unpack(bytes, name), name);
  const NiftiHeader header = HeaderReader(bytes, name).read();
  if (bytes.size() < header.offset || bytes.size() - header.offset < header.bytes)
    refuse_size(header, name, text("there are ", format_count(std::ssize(bytes))));
  Volume volume{header.info};
  volume.values = values_of(header, bytes.substr(header.offset, header.bytes));
  return volume;
}

Volume read_nifti(const std::filesystem::path& path) {
  return parse_nifti(read_file(path), path.string());
}

VolumeInfo read_nifti_info(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string start(1 << 16, '\0');  // gzip's own header may be long
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  if (start.empty()) return read_nifti(path);  // reports what is wrong
  const std::string name = path.string();
  if (is_gzip(start)) start = gunzip(start, name, header_bytes_2);
  return HeaderReader(start, name).read().info;
}

std::string nifti_bytes(const Volume& volume, VoxelType type, std::string_view name) {
  constexpr std::int64_t most = std::numeric_limits<std::int16_t>::max();
  const auto in_range = [](std::int64_t side) { return side >= 1 && side <= most; };
  const bool fits = in_range(volume.channels) && std::ranges::all_of(volume.sides, in_range) &&
                    std::cmp_equal(volume.values.size(), volume.channels * volume.voxels());
  if (!fits)
    throw UsageError(
        text("cannot write ", volume.values.size(), " values as a volume of ", volume.channels,
             " x ", join(volume.sides, " x "), "; sides are 1 to ", most),
        {.file = std::string(name)});
  std::string bytes = header_of(volume, type);
  if (type == VoxelType::UInt8) append_values<std::uint8_t>(bytes, volume, name);
  if (type == VoxelType::Int16) append_values<std::int16_t>(bytes, volume, name);
  if (type == VoxelType::Float32) append_values<float>(bytes, volume, name);
  return bytes;
}

void write_nifti(const std::filesystem::path& path, const Volume& volume, VoxelType type) {
  const std::string bytes = nifti_bytes(volume, type, path.string());
  write_file(path, path.extension() == ".gz" ? gzip(bytes) : bytes);
}

}  // namespace trestle::data
