#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "tests/data/scratch.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/data/files/gzip.h"
#include "trestle/data/files/nifti.h"
#include "trestle/data/files/npy.h"
#include "trestle/data/files/volume_file.h"
#include "trestle/data/synthetic/synthesize.h"

namespace trestle::data {
namespace {

namespace fs = std::filesystem;
using support::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string golden_nifti = TRESTLE_SOURCE_DIR "/tests/golden/nifti/";

template <class T>
std::vector<T> numbers_in(const std::string& name) {
  const NpyArray array = read_npy(golden_nifti + name);
  std::vector<T> numbers(static_cast<std::size_t>(array.count()));
  std::memcpy(numbers.data(), array.bytes.data(), array.bytes.size());
  return numbers;
}

class NiftiOfNibabel : public ::testing::TestWithParam<const char*> {};

TEST_P(NiftiOfNibabel, HasItsValuesAndItsAffine) {
  const std::string file = GetParam(), stem = file.substr(0, file.find('.'));
  const Volume volume = read_nifti(golden_nifti + file);
  const NpyArray shape = read_npy(golden_nifti + stem + ".values.npy");
  EXPECT_EQ((std::vector<std::int64_t>{volume.channels, volume.sides[0], volume.sides[1],
                                       volume.sides[2]}),
            shape.shape);
  EXPECT_EQ(volume.values, numbers_in<float>(stem + ".values.npy"));
  const std::vector<double> expected = numbers_in<double>(stem + ".affine.npy");
  const std::array<double, 12> affine = volume.space.value().affine();
  for (std::size_t i = 0; i < affine.size(); ++i) EXPECT_NEAR(affine[i], expected[i], 1e-5) << i;
  const VolumeInfo info = read_nifti_info(golden_nifti + file);
  EXPECT_EQ(info.channels, volume.channels);
  EXPECT_EQ(info.sides, volume.sides);
  EXPECT_EQ(info.space->affine(), affine);
}

INSTANTIATE_TEST_SUITE_P(Files, NiftiOfNibabel,
                         ::testing::Values("uint8.nii", "int8.nii", "int16.nii", "uint16.nii",
                                           "int32.nii", "uint32.nii", "int64.nii", "uint64.nii",
                                           "float32.nii", "float64.nii", "scaled.nii.gz",
                                           "big_endian.nii.gz", "channels.nii.gz", "vectors.nii",
                                           "second_version.nii.gz", "qform.nii", "extended.nii"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(0, name.find('.'));
                         });

TEST(Nifti, WrittenInTheSameSpaceWithTheSameBytesOfTheHeader) {
  const Scratch scratch;
  for (const char* file : {"int16.nii", "qform.nii", "second_version.nii.gz"}) {
    const Volume read = read_nifti(golden_nifti + file);
    write_nifti(scratch / "a.nii.gz", read, VoxelType::Int16);
    const Volume again = read_nifti(scratch / "a.nii.gz");
    EXPECT_EQ(again.values, read.values);
    EXPECT_EQ(again.sides, read.sides);
    EXPECT_TRUE(same_place(*again.space, *read.space));
    EXPECT_EQ(again.space->qform_code, read.space->qform_code);
    EXPECT_EQ(again.space->sform_code, read.space->sform_code);
    EXPECT_EQ(again.space->units, read.space->units);
  }
  const std::string original = read_file(golden_nifti + "int16.nii");
  const std::string written =
      nifti_bytes(read_nifti(golden_nifti + "int16.nii"), VoxelType::Int16, "a.nii");
  EXPECT_EQ(written.substr(76, 32), original.substr(76, 32)) << "pixdim";
  EXPECT_EQ(written.substr(252, 76), original.substr(252, 76)) << "qform and sform";
}

TEST(Nifti, RefusesValuesThatDoNotFit) {
  Volume volume{{.channels = 1, .sides = {1, 1, 2}}};
  volume.values = {0, 300};
  EXPECT_THAT(message_of([&] { nifti_bytes(volume, VoxelType::UInt8, "a.nii"); }),
              AllOf(HasSubstr("a.nii"), HasSubstr("300")));
  volume.values = {0, 0.5};
  EXPECT_THROW(nifti_bytes(volume, VoxelType::Int16, "a.nii"), UsageError);
  EXPECT_NO_THROW(nifti_bytes(volume, VoxelType::Float32, "a.nii"));
  volume.values = {0};
  EXPECT_THROW(nifti_bytes(volume, VoxelType::Float32, "a.nii"), UsageError);
}

// A file whose header is changed at one place.
template <class T>
std::string changed(std::size_t at, T value) {
  std::string bytes = read_file(golden_nifti + "int16.nii");
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

std::string refusal(const std::string& bytes) {
  return message_of<FormatError>([&] { parse_nifti(bytes, "scan.nii"); });
}

TEST(Nifti, NamesTheFileAndTheNumbersOfDamage) {
  const std::string good = read_file(golden_nifti + "int16.nii");
  EXPECT_THAT(refusal(good.substr(0, 100)), AllOf(HasSubstr("scan.nii"), HasSubstr("100 bytes")));
  EXPECT_THAT(refusal(good.substr(0, 380)),
              AllOf(HasSubstr("1 x 2 x 3 x 4 values of int16"), HasSubstr("400 bytes"),
                    HasSubstr("there are 380")));
  EXPECT_THAT(refusal(changed<std::int32_t>(0, 347)), HasSubstr("348 or 540"));
  EXPECT_THAT(refusal(changed<char>(344, 'x')), HasSubstr("no mark"));
  EXPECT_THAT(refusal(changed<std::int16_t>(40, 8)), HasSubstr("8 dimensions"));
  EXPECT_THAT(refusal(changed<std::int16_t>(42, -4)), HasSubstr("dimension 1 has size -4"));
  EXPECT_THAT(refusal(changed<std::int16_t>(42, 32767)), HasSubstr("32767"));
  EXPECT_THAT(refusal(changed<std::int16_t>(70, 32)), HasSubstr("data type 32"));
  EXPECT_THAT(refusal(changed<float>(80, 0)), HasSubstr("3.007 x 0.9179 x 0"));
  EXPECT_THAT(refusal(changed<float>(88, std::nanf(""))), HasSubstr("spacing (pixdim) is nan"));
  EXPECT_THAT(refusal(changed<float>(284, HUGE_VALF)), HasSubstr("not finite"));
  EXPECT_THAT(refusal(changed<float>(108, 12)), HasSubstr("byte 12"));
  EXPECT_THAT(refusal(changed<float>(108, 1e20f)), HasSubstr("byte 1e+20"));
  EXPECT_THAT(refusal(changed<float>(112, HUGE_VALF)), HasSubstr("scl_slope inf"));
  EXPECT_THAT(refusal(read_file(golden_nifti + "colours.nii")), HasSubstr("data type 128"));
  EXPECT_THAT(refusal(read_file(golden_nifti + "pair.hdr")), HasSubstr(".hdr and .img"));
}

// A header that claims 32767 voxels a side costs no memory: neither plain nor packed.
TEST(Nifti, ComparesTheClaimedSizeWithTheFileBeforeItAllocates) {
  const Scratch scratch;
  Volume small{{.channels = 1, .sides = {1, 1, 1}}};
  small.values = {0};
  std::string bytes = nifti_bytes(small, VoxelType::UInt8, "a.nii");
  for (std::size_t d = 1; d <= 3; ++d) {
    const std::int16_t side = 32767;
    std::memcpy(bytes.data() + 40 + 2 * d, &side, 2);
  }
  EXPECT_THAT(refusal(bytes), HasSubstr("35,181,150,962,015 bytes, but there are 353"));
  const std::string bomb = gzip(bytes);
  EXPECT_THAT(refusal(bomb), HasSubstr(text("there are ", bomb.size(), " compressed bytes")));
  // A claim that deflate could reach, but that the file does not hold.
  const std::int16_t side = 20;
  for (std::size_t d = 1; d <= 3; ++d) std::memcpy(bytes.data() + 40 + 2 * d, &side, 2);
  EXPECT_THAT(refusal(gzip(bytes)), HasSubstr("8,352 bytes, but there are 353"));
  write_nifti(scratch / "a.nii.gz", small, VoxelType::UInt8);
  const std::string packed = read_file(scratch / "a.nii.gz");
  EXPECT_EQ(parse_nifti(packed, "a.nii.gz").values.size(), 1u);
  EXPECT_THAT(refusal(packed.substr(0, packed.size() / 2)), HasSubstr("scan.nii"));
}

TEST(FuzzNifti, DamageGivesAnErrorOrAWholeVolume) {
  const auto whole = [](std::string_view bytes) {
    const Volume volume = parse_nifti(bytes, "fuzz");
    ASSERT_EQ(volume.values.size(), static_cast<std::size_t>(volume.channels * volume.voxels()));
    ASSERT_TRUE(volume.space.has_value());
    ASSERT_GT(volume.space->spacing()[0], 0);
  };
  const auto plain =
      fuzz::run({read_file(golden_nifti + "int16.nii"), read_file(golden_nifti + "float64.nii"),
                 read_file(golden_nifti + "vectors.nii")},
                whole);
  EXPECT_GT(plain.accepted, 100);
  EXPECT_GT(plain.refused, 1000);
  const auto packed = fuzz::run({read_file(golden_nifti + "scaled.nii.gz"),
                                 read_file(golden_nifti + "second_version.nii.gz")},
                                whole);
  EXPECT_GT(packed.accepted, 10);
  EXPECT_GT(packed.refused, 1000);
}

TEST(VolumeFile, ReadsArraysOfNumPy) {
  const Scratch scratch;
  NpyArray array{.type = "i2", .shape = {2, 1, 2, 3}};
  for (std::int16_t i = 0; i < 12; ++i) {
    const auto number = static_cast<std::int16_t>(i - 6);
    array.bytes.append(reinterpret_cast<const char*>(&number), 2);
  }
  write_npy(scratch / "a.npy", array);
  const Volume volume = read_volume(scratch / "a.npy");
  EXPECT_EQ(volume.channels, 2);
  EXPECT_EQ(volume.sides, (Sides{1, 2, 3}));
  EXPECT_EQ(volume.values[0], -6);
  EXPECT_EQ(volume.values[11], 5);
  EXPECT_FALSE(volume.space.has_value());
  EXPECT_EQ(read_volume_info(scratch / "a.npy").sides, volume.sides);
  write_npy(scratch / "b.npy", {.type = "u1", .shape = {3}, .bytes = "abc"});
  EXPECT_THAT(message_of<FormatError>([&] { read_volume(scratch / "b.npy"); }),
              AllOf(HasSubstr("b.npy"), HasSubstr("shape [3]")));
  const std::uint16_t halves[] = {0x3c00, 0xc000, 0x0001, 0x7c00};
  write_npy(scratch / "c.npy", {.type = "f2",
                                .shape = {1, 1, 4},
                                .bytes = std::string(reinterpret_cast<const char*>(halves), 8)});
  EXPECT_THAT(message_of<FormatError>([&] { read_volume(scratch / "c.npy"); }),
              HasSubstr("1 of its 4 values are not finite"));
  EXPECT_THAT(message_of<FormatError>([&] { read_volume(scratch / "d.dcm"); }),
              HasSubstr("dcm2niix"));
}

TEST(VolumeFile, PairsByTheNameWithoutTheWholeEnding) {
  const Scratch scratch;
  for (const char* folder : {"images", "labels"}) fs::create_directories(scratch / folder);
  for (const char* name : {"images/a.nii.gz", "images/b.v1.nii", "images/c.npy", "labels/a_seg.nii",
                           "labels/b.v1_seg.nii.gz"})
    write_file(scratch / name, "x");
  const PairListing listing = list_volume_pairs(scratch / "images", scratch / "labels", "_seg");
  ASSERT_EQ(listing.pairs.size(), 2u);
  EXPECT_EQ(listing.pairs[0].id, "a");
  EXPECT_EQ(listing.pairs[1].id, "b.v1");
  EXPECT_EQ(listing.pairs[1].mask, scratch / "labels/b.v1_seg.nii.gz");
  EXPECT_THAT(listing.problems,
              ::testing::ElementsAre(HasSubstr("images/c.npy (looked for c_seg.*)")));
}

TEST(SynthesizeVolumes, DrawsTubesAndBlobsInTheirSpaces) {
  const Scratch scratch;
  const SynthesizeVolumesOptions options{.depth = 16, .height = 32, .width = 40, .seed = 5};
  synthesize_volumes(scratch / "scans", 3, options);
  std::vector<Volume> scans;
  for (const char* name : {"scan_000.nii.gz", "scan_001.nii.gz", "scan_002.nii.gz"}) {
    const Volume scan = read_volume(scratch / "scans/volumes" / name);
    const Volume labels = read_volume(scratch / "scans/labels" / name);
    EXPECT_EQ(scan.sides, (Sides{16, 32, 40}));
    EXPECT_EQ(scan.space->spacing(), (std::array<double, 3>{2, 1, 1}));
    EXPECT_TRUE(same_place(*scan.space, *labels.space));
    // The qform and the sform tell of one place.
    VolumeSpace by_qform = *scan.space;
    by_qform.sform_code = 0;
    EXPECT_TRUE(same_place(*scan.space, by_qform));
    std::array<double, 3> count = {}, sum = {};
    for (std::size_t i = 0; i < labels.values.size(); ++i) {
      const auto label = static_cast<std::size_t>(labels.values[i]);
      ASSERT_LT(label, 3u);
      count[label] += 1;
      sum[label] += scan.values[i];
    }
    const double voxels = static_cast<double>(labels.values.size());
    EXPECT_GT(count[1] / voxels, 0.005);
    EXPECT_GT(count[2] / voxels, 0.002);
    EXPECT_GT(count[0] / voxels, 0.7);
    EXPECT_GT(sum[1] / count[1], sum[2] / count[2] + 20) << "tubes are brighter";
    EXPECT_GT(sum[2] / count[2], sum[0] / count[0] + 20);
    scans.push_back(scan);
  }
  EXPECT_NE(scans[0].values, scans[1].values);
  EXPECT_FALSE(same_place(*scans[0].space, *scans[1].space));
  synthesize_volumes(scratch / "again", 1, options);
  EXPECT_EQ(read_file(scratch / "again/volumes/scan_000.nii.gz"),
            read_file(scratch / "scans/volumes/scan_000.nii.gz"));
  EXPECT_THROW(synthesize_volumes(scratch / "none", 1, {.depth = 4}), UsageError);
}

}  // namespace
}  // namespace trestle::data
