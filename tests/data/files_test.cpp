#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/data/scratch.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/data/files/detail/class_folders.h"
#include "trestle/data/files/detail/idx.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/files/image_pairs.h"
#include "trestle/data/files/mask_values.h"
#include "trestle/data/files/mnist_files.h"

namespace trestle::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

IdxImages two_images() { return {2, 2, 3, {0, 1, 2, 3, 4, 5, 250, 251, 252, 253, 254, 255}}; }

std::string image_bytes() {
  const Scratch scratch;
  write_idx_images(scratch / "images", two_images());
  return read_file(scratch / "images");
}

std::string idx_error(const std::string& bytes) {
  try {
    parse_idx_images(bytes, "mnist/images");
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("mnist/images"));
    return error.what();
  }
  return "no error";
}

TEST(Idx, HasTheLayoutOfTheFormat) {
  const std::string bytes = image_bytes();
  const std::string header("\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x03", 16);
  EXPECT_EQ(bytes.substr(0, 16), header);
  EXPECT_EQ(bytes.size(), 16u + 12u);
  const IdxImages back = parse_idx_images(bytes, "a");
  EXPECT_EQ(back.count, 2);
  EXPECT_EQ(back.rows, 2);
  EXPECT_EQ(back.columns, 3);
  EXPECT_EQ(back.pixels, two_images().pixels);
}

TEST(Idx, LabelsRoundTrip) {
  const Scratch scratch;
  write_idx_labels(scratch / "labels", {7, 0, 9});
  EXPECT_THAT(read_idx_labels(scratch / "labels"), ElementsAre(7, 0, 9));
}

TEST(Idx, EveryOtherLengthIsAnError) {
  const std::string bytes = image_bytes();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_NE(idx_error(bytes.substr(0, length)), "no error") << length;
  }
  EXPECT_THAT(idx_error(bytes + "x"), AllOf(HasSubstr("2 x 2 x 3 need 12"), HasSubstr("are 13")));
}

TEST(Idx, ErrorsGiveTheReason) {
  std::string bytes = image_bytes();
  EXPECT_THAT(idx_error("\x1f\x8b\x08 packed"), HasSubstr("not a readable gzip file"));
  EXPECT_THAT(idx_error("\0\0"), HasSubstr("its header needs 16"));
  EXPECT_THROW(parse_idx_labels(bytes, "a"), FormatError);
  std::string zero = bytes;
  zero[7] = 0;
  EXPECT_THAT(idx_error(zero), HasSubstr("dimension 0 has size 0"));
  std::string huge = bytes;
  for (int i = 4; i < 16; ++i) huge[i] = '\xff';
  EXPECT_THAT(idx_error(huge), HasSubstr("dimension 1 has size 4294967295"));
  bytes[2] = 0x0d;
  EXPECT_THAT(idx_error(bytes), HasSubstr("0 0 13 3 instead of 0 0 8 3"));
}

TEST(Idx, WritersRejectInvalidSizes) {
  const Scratch scratch;
  EXPECT_THROW(write_idx_images(scratch / "a", {2, 2, 2, {1, 2, 3}}), UsageError);
  EXPECT_THROW(write_idx_labels(scratch / "a", {}), UsageError);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

void write_mnist(const std::filesystem::path& folder, MnistPart part, const IdxLabels& labels) {
  const MnistFiles files = mnist_paths(folder, part);
  write_idx_images(files.images, two_images());
  write_idx_labels(files.labels, labels);
}

TEST(MnistFiles, ReadsAPart) {
  const Scratch scratch;
  write_mnist(scratch.path(), MnistPart::Test, {3, 4});
  const MnistArrays arrays = read_mnist(scratch.path(), MnistPart::Test);
  EXPECT_EQ(arrays.images.count, 2);
  EXPECT_THAT(arrays.labels, ElementsAre(3, 4));
  std::filesystem::rename(scratch / "t10k-images-idx3-ubyte", scratch / "t10k-images.idx3-ubyte");
  EXPECT_NO_THROW(read_mnist(scratch.path(), MnistPart::Test));
}

TEST(MnistFiles, MismatchesAreErrors) {
  const Scratch scratch;
  write_mnist(scratch.path(), MnistPart::Train, {1, 2, 3});
  EXPECT_THROW(read_mnist(scratch.path(), MnistPart::Train), FormatError);
  write_mnist(scratch.path(), MnistPart::Train, {1, 10});
  EXPECT_THROW(read_mnist(scratch.path(), MnistPart::Train), FormatError);
  EXPECT_THROW(read_mnist(scratch.path(), MnistPart::Test), UsageError);
  EXPECT_THROW(read_mnist(scratch / "nowhere", MnistPart::Test), UsageError);
}

// Files that gzip wrote (make_gzip_goldens.py): small ones in MNIST's format.
const std::filesystem::path packed = TRESTLE_SOURCE_DIR "/tests/golden/mnist";

TEST(MnistFiles, ReadsCompressedFilesAndTorchvisionsFolders) {
  const MnistArrays expected = {{3, 2, 2, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 255}}, {7, 0, 9}};
  for (const char* place : {"", "raw", "MNIST/raw", "FashionMNIST/raw"}) {
    const Scratch scratch;
    std::filesystem::create_directories(scratch / place);
    for (const char* kind : {"images-idx3-ubyte.gz", "labels-idx1-ubyte.gz"})
      std::filesystem::copy(packed / (std::string("train-") + kind), scratch / place);
    const MnistArrays arrays = read_mnist(scratch.path(), MnistPart::Train);
    EXPECT_EQ(arrays.images.count, expected.images.count) << place;
    EXPECT_EQ(arrays.images.pixels, expected.images.pixels) << place;
    EXPECT_EQ(arrays.labels, expected.labels) << place;
    // Uncompressed files are preferred.
    write_idx_labels(scratch / place / "train-labels-idx1-ubyte", {1, 2, 3});
    EXPECT_THAT(read_mnist(scratch.path(), MnistPart::Train).labels, ElementsAre(1, 2, 3));
  }
}

TEST(MnistFiles, DamagedCompressedFilesAreErrors) {
  const std::string whole = read_file(packed / "train-images-idx3-ubyte.gz");
  for (std::size_t length = 2; length < whole.size(); ++length)
    EXPECT_NE(idx_error(whole.substr(0, length)), "no error") << length;
  // Two concatenated gzip files are one file with both contents.
  const std::string two = whole + whole;
  EXPECT_THAT(idx_error(two), AllOf(HasSubstr("3 x 2 x 2 need 12"), HasSubstr("are 13")));
  EXPECT_THAT(idx_error(whole + "x"), HasSubstr("not a readable gzip file"));
}

// Two folders and the files that a test adds.
struct CarFolders {
  CarFolders() {
    std::filesystem::create_directory(images);
    std::filesystem::create_directory(masks);
  }
  void add(const std::string& id, int mask_width = 8) {
    write_jpeg(images / (id + ".jpg"), Image::blank(8, 6, 3));
    write_gif_mask(masks / (id + "_mask.gif"), Image::blank(mask_width, 6, 1));
  }

  Scratch scratch;
  std::filesystem::path images = scratch / "images";
  std::filesystem::path masks = scratch / "masks";
};

TEST(ImagePairs, PairsBySortedId) {
  CarFolders cars;
  for (const char* id : {"b_02", "a_01", "b_01"}) cars.add(id);
  write_file(cars.images / ".DS_Store", "x");
  write_file(cars.masks / ".hidden_mask.gif", "x");
  std::filesystem::create_directory(cars.images / "more");
  write_file(cars.masks / "unused_mask.gif", "x");
  const PairListing listing = list_pairs(cars.images, cars.masks, carvana_suffix);
  EXPECT_THAT(listing.problems, IsEmpty());
  ASSERT_THAT(listing.pairs, SizeIs(3));
  EXPECT_EQ(listing.pairs[0].id, "a_01");
  EXPECT_EQ(listing.pairs[2].mask, cars.masks / "b_02_mask.gif");
}

TEST(ImagePairs, ListsEveryProblem) {
  CarFolders cars;
  cars.add("good");
  write_file(cars.images / "lonely.jpg", "x");
  cars.add("twice");
  write_file(cars.images / "twice.png", "x");
  cars.add("masks");
  write_file(cars.masks / "masks_mask.png", "x");
  const PairListing listing = list_pairs(cars.images, cars.masks, carvana_suffix);
  EXPECT_THAT(listing.pairs, SizeIs(1));
  EXPECT_THAT(listing.problems,
              ElementsAre(HasSubstr("images/lonely.jpg (looked for lonely_mask.*)"),
                          HasSubstr("2 masks for masks: masks_mask.gif, masks_mask.png"),
                          HasSubstr("2 images with the id twice: twice.jpg, twice.png")));
}

TEST(ImagePairs, MissingAndEmptyFoldersAreErrors) {
  const CarFolders cars;
  EXPECT_THROW(list_pairs(cars.images / "no", cars.masks, carvana_suffix), UsageError);
  EXPECT_THROW(list_pairs(cars.images, cars.masks / "no", carvana_suffix), UsageError);
  EXPECT_THROW(list_pairs(cars.images, cars.masks, carvana_suffix), UsageError);
}

TEST(ImagePairs, SameNamesOrAnySuffix) {
  CarFolders cars;
  write_file(cars.images / "a.jpg", "x");
  write_file(cars.masks / "a.png", "x");
  EXPECT_THAT(list_pairs(cars.images, cars.masks, "").pairs, SizeIs(1));
  EXPECT_THAT(list_pairs(cars.images, cars.masks, "_seg").problems,
              ElementsAre(HasSubstr("looked for a_seg.*")));
  std::filesystem::rename(cars.masks / "a.png", cars.masks / "a-seg.png");
  EXPECT_THAT(list_pairs(cars.images, cars.masks, "-seg").pairs, SizeIs(1));
  EXPECT_THAT(list_pairs(cars.images, cars.masks, "").problems,
              ElementsAre(HasSubstr("there is a-seg.png: is mask_suffix \"-seg\"?")));
}

TEST(ImagePairs, OneFolderWithImagesAndMasks) {
  const Scratch scratch;
  for (const char* name : {"a.jpg", "a_mask.png", "b.jpg", "b_mask.png"})
    write_file(scratch / name, "x");
  const PairListing listing = list_pairs(scratch.path(), scratch.path(), "_mask");
  EXPECT_THAT(listing.problems, IsEmpty());
  EXPECT_THAT(listing.pairs, SizeIs(2));
  EXPECT_THROW(list_pairs(scratch.path(), scratch.path(), ""), UsageError);
}

std::string folders_message(const std::filesystem::path& folder,
                            const std::vector<std::string>& classes = {}) {
  try {
    list_class_folders(folder, classes);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ClassFolders, AreSortedByName) {
  const Scratch scratch;
  for (const char* name : {"dogs", "cats", "birds", ".git"})
    std::filesystem::create_directory(scratch / name);
  for (const char* name : {"dogs/2.jpg", "dogs/1.jpg", "cats/1.png", "birds/a.gif", "notes.txt"})
    write_file(scratch / name, "x");
  const ClassFolders found = list_class_folders(scratch.path());
  EXPECT_THAT(found.classes, ElementsAre("birds", "cats", "dogs"));
  ASSERT_THAT(found.images, SizeIs(4));
  EXPECT_EQ(found.images[1].label, 1);
  EXPECT_EQ(found.images[2].path, scratch / "dogs/1.jpg");
  EXPECT_EQ(found.images[2].label, 2);
  const ClassFolders more = list_class_folders(scratch.path(), {"birds", "cats", "dogs", "fish"});
  EXPECT_THAT(more.images, SizeIs(4));
}

TEST(ClassFolders, MistakesAreNamed) {
  const Scratch scratch;
  EXPECT_THAT(folders_message(scratch / "no"), HasSubstr("no such folder"));
  std::filesystem::create_directories(scratch / "cats");
  EXPECT_THAT(folders_message(scratch.path()), HasSubstr("1 folders here"));
  std::filesystem::create_directories(scratch / "dogs");
  write_file(scratch / "dogs/1.jpg", "x");
  EXPECT_THAT(folders_message(scratch.path()), AllOf(HasSubstr("cats"), HasSubstr("no images")));
  EXPECT_THAT(folders_message(scratch.path(), {"cats", "birds"}),
              HasSubstr("the class 'dogs' is not one of cats, birds"));
}

Image mask_of(int channels, const std::vector<std::uint8_t>& pixels) {
  return {static_cast<int>(pixels.size()) / channels, 1, channels, pixels};
}

TEST(MaskValues, RoundTripAsText) {
  EXPECT_EQ(to_string(parse_mask_value("0")), "0");
  EXPECT_EQ(to_string(parse_mask_value("255")), "255");
  EXPECT_EQ(to_string(parse_mask_value("#ff8000")), "#ff8000");
  EXPECT_EQ(to_string(parse_mask_value("#FFFFFF")), "255");
  for (const char* wrong : {"", "256", "-1", "red", "#ff80", "1 ", "#ff80000", "#", "0x10"})
    EXPECT_THROW(parse_mask_value(wrong), UsageError) << wrong;
}

// The same shapes saved as class ids, in black and white, and in colours have the same classes.
TEST(MaskValues, EveryKindOfMaskGivesClassIds) {
  const Scratch scratch;
  const auto ids_of = [&](const Image& mask, int classes) {
    write_png(scratch / "mask.png", mask);
    const MaskCensus census = count_mask_values({scratch / "mask.png"}, 1);
    EXPECT_THAT(census.problems, IsEmpty());
    return MaskClasses(find_mask_values(census, classes))
        .ids(read_mask(scratch / "mask.png"), "mask.png")
        .pixels;
  };
  EXPECT_THAT(ids_of(mask_of(1, {0, 255, 0}), 2), ElementsAre(0, 1, 0));
  EXPECT_THAT(ids_of(mask_of(1, {0, 1, 0}), 2), ElementsAre(0, 1, 0));
  EXPECT_THAT(ids_of(mask_of(1, {0, 0, 0}), 2), ElementsAre(0, 0, 0));
  EXPECT_THAT(ids_of(mask_of(1, {255, 255, 255}), 2), ElementsAre(1, 1, 1));
  EXPECT_THAT(ids_of(mask_of(1, {0, 3, 2}), 5), ElementsAre(0, 3, 2));
  EXPECT_THAT(ids_of(mask_of(1, {0, 254, 0}), 3), ElementsAre(0, 2, 0))
      << "predicted masks; 127 does not occur";
  EXPECT_THAT(ids_of(mask_of(1, {60, 80, 10}), 3), ElementsAre(1, 2, 0));
  EXPECT_THAT(ids_of(mask_of(3, {255, 0, 0, 0, 0, 0, 0, 0, 255}), 3), ElementsAre(2, 0, 1));
  EXPECT_THAT(ids_of(mask_of(3, {0, 0, 0, 255, 255, 255}), 2), ElementsAre(0, 1)) << "grey as RGB";
  EXPECT_THAT(ids_of(mask_of(4, {0, 0, 0, 9, 255, 255, 255, 7}), 2), ElementsAre(0, 1));
  EXPECT_THAT(ids_of(mask_of(2, {0, 9, 255, 7}), 2), ElementsAre(0, 1)) << "grey and alpha";
}

TEST(MaskValues, ACensusCountsPixelsOnSeveralThreads) {
  const Scratch scratch;
  std::vector<std::filesystem::path> masks;
  for (int i = 0; i < 20; ++i) {
    masks.push_back(scratch / ("m" + std::to_string(i) + ".png"));
    write_png(masks.back(), mask_of(1, {0, 255, 255, 0, 0}));
  }
  write_file(scratch / "broken.png", "x");
  masks.push_back(scratch / "broken.png");
  Image many = Image::blank(300, 1, 3);
  for (int x = 0; x < 300; ++x) many.at(x, 0, x % 3) = static_cast<std::uint8_t>(1 + x / 3);
  write_png(scratch / "many.png", many);
  masks.push_back(scratch / "many.png");
  for (const int threads : {1, 4}) {
    std::int64_t last = 0;
    const MaskCensus census =
        count_mask_values(masks, threads, [&](std::int64_t done, std::int64_t) { last = done; });
    EXPECT_EQ(last, std::ssize(masks));
    EXPECT_EQ(census.pixels.size(), 2u);
    EXPECT_EQ(census.pixels.at(0), 60);
    EXPECT_EQ(census.pixels.at(0xffffff), 40);
    ASSERT_THAT(census.problems, SizeIs(2));
    EXPECT_THAT(census.problems.at(scratch / "broken.png"), HasSubstr("not a picture"));
    EXPECT_THAT(census.problems.at(scratch / "many.png"), HasSubstr("more than 256 different"));
    EXPECT_EQ(describe_classes(find_mask_values(census, 2), census),
              "0 = 0 (60.0 % of all pixels), 1 = 255 (40.0 %)");
  }
}

TEST(MaskValues, AValueWithoutAClassIsAnError) {
  MaskCensus census;
  for (const MaskValue value : {0u, 0x3c3c3cu, 0xff0000u}) census.pixels[value] = 1;
  try {
    find_mask_values(census, 2);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("3 different values (0, 60, #ff0000)"),
                                    HasSubstr("classes = 3"), HasSubstr("mask_values")));
  }
  const MaskClasses classes({0, 0xffffff});
  try {
    classes.ids(mask_of(1, {0, 7}), "masks/a.png");
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("masks/a.png"), HasSubstr("value 7"), HasSubstr("0 = 0, 1 = 255")));
  }
  EXPECT_THROW(MaskClasses({0, 0}), UsageError);
  EXPECT_THROW(MaskClasses({}), UsageError);
}

}  // namespace
}  // namespace trestle::data
