#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/data/scratch.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/data/files/carvana_files.h"
#include "trestle/data/files/check.h"
#include "trestle/data/files/idx.h"
#include "trestle/data/files/image_file.h"
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

std::string message_of(const std::string& bytes) {
  try {
    parse_idx_images(bytes, "mnist/images");
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("mnist/images"));
    return error.what();
  }
  return "no error";
}

TEST(Idx, LayoutIsThatOfTheFormat) {
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

TEST(Idx, EveryOtherLengthIsRefused) {
  const std::string bytes = image_bytes();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_NE(message_of(bytes.substr(0, length)), "no error") << length;
  }
  EXPECT_THAT(message_of(bytes + "x"), AllOf(HasSubstr("2 x 2 x 3 need 12"), HasSubstr("are 13")));
}

TEST(Idx, ErrorsSayWhatIsWrong) {
  std::string bytes = image_bytes();
  EXPECT_THAT(message_of("\x1f\x8b\x08 packed"), HasSubstr("gunzip"));
  EXPECT_THAT(message_of("\0\0"), HasSubstr("header alone has 16"));
  EXPECT_THROW(parse_idx_labels(bytes, "a"), FormatError);
  std::string zero = bytes;
  zero[7] = 0;
  EXPECT_THAT(message_of(zero), HasSubstr("dimension 0 has size 0"));
  std::string huge = bytes;
  for (int i = 4; i < 16; ++i) huge[i] = '\xff';
  EXPECT_THAT(message_of(huge), HasSubstr("dimension 1 has size 4294967295"));
  bytes[2] = 0x0d;
  EXPECT_THAT(message_of(bytes), HasSubstr("0 0 13 3 instead of 0 0 8 3"));
}

TEST(Idx, WritersRefuseWhatDoesNotFit) {
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
  write_file(scratch / "t10k-images-idx3-ubyte.gz", "\x1f\x8b");
  try {
    find_mnist(scratch.path(), MnistPart::Test);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("gunzip"));
  }
}

// Two folders and the files a test puts into them.
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

TEST(CarvanaFiles, PairsBySortedId) {
  CarFolders cars;
  for (const char* id : {"b_02", "a_01", "b_01"}) cars.add(id);
  write_file(cars.images / ".DS_Store", "x");
  write_file(cars.masks / ".hidden_mask.gif", "x");
  std::filesystem::create_directory(cars.images / "more");
  write_file(cars.masks / "unused_mask.gif", "x");
  const CarvanaListing listing = list_carvana(cars.images, cars.masks);
  EXPECT_THAT(listing.problems, IsEmpty());
  ASSERT_THAT(listing.pairs, SizeIs(3));
  EXPECT_EQ(listing.pairs[0].id, "a_01");
  EXPECT_EQ(listing.pairs[2].mask, cars.masks / "b_02_mask.gif");
}

TEST(CarvanaFiles, ListsEveryProblem) {
  CarFolders cars;
  cars.add("good");
  write_file(cars.images / "lonely.jpg", "x");
  cars.add("twice");
  write_file(cars.images / "twice.png", "x");
  cars.add("masks");
  write_file(cars.masks / "masks_mask.png", "x");
  const CarvanaListing listing = list_carvana(cars.images, cars.masks);
  EXPECT_THAT(listing.pairs, SizeIs(1));
  EXPECT_THAT(listing.problems,
              ElementsAre(HasSubstr("no mask for images/lonely.jpg (looked for lonely_mask.*)"),
                          HasSubstr("2 masks for masks: masks_mask.gif, masks_mask.png"),
                          HasSubstr("2 images with the id twice: twice.jpg, twice.png")));
}

TEST(CarvanaFiles, MissingAndEmptyFoldersAreErrors) {
  const CarFolders cars;
  EXPECT_THROW(list_carvana(cars.images / "no", cars.masks), UsageError);
  EXPECT_THROW(list_carvana(cars.images, cars.masks / "no"), UsageError);
  EXPECT_THROW(list_carvana(cars.images, cars.masks), UsageError);
}

TEST(Check, CarvanaReportsAllProblems) {
  CarFolders cars;
  cars.add("a");
  cars.add("b");
  cars.add("wrong_size", 7);
  cars.add("damaged");
  std::filesystem::resize_file(cars.images / "damaged.jpg",
                               std::filesystem::file_size(cars.images / "damaged.jpg") / 2);
  write_jpeg(cars.images / "lonely.jpg", Image::blank(8, 6, 3));
  cars.add("grey");
  write_jpeg(cars.images / "grey.jpg", Image::blank(8, 6, 1));
  cars.add("value");
  Image mask = Image::blank(8, 6, 1);
  mask.pixels[3] = 255;
  std::filesystem::remove(cars.masks / "value_mask.gif");
  write_png(cars.masks / "value_mask.png", mask);
  std::int64_t steps = 0;
  const CheckReport report =
      check_carvana(cars.images, cars.masks, 2, [&](std::int64_t done, std::int64_t all) {
        EXPECT_EQ(done, ++steps);
        EXPECT_EQ(all, 6);
      });
  EXPECT_EQ(steps, 6);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.count, 2);
  EXPECT_THAT(report.sizes, ElementsAre(testing::Pair("8 x 6 x 3", 2)));
  EXPECT_THAT(report.problems,
              testing::UnorderedElementsAre(HasSubstr("lonely"), HasSubstr("damaged.jpg"),
                                            HasSubstr("1 channels instead of 3"),
                                            HasSubstr("value 255"), HasSubstr("7 x 6 pixels")));
}

TEST(Check, NeverThrowsForMissingFolders) {
  const Scratch scratch;
  EXPECT_THAT(check_carvana(scratch / "a", scratch / "b").problems, SizeIs(1));
  EXPECT_THAT(check_mnist(scratch / "a").problems, SizeIs(1));
  EXPECT_THAT(check_mnist(scratch.path()).problems, SizeIs(2));
}

TEST(Check, Mnist) {
  const Scratch scratch;
  write_mnist(scratch.path(), MnistPart::Train, {3, 4});
  write_mnist(scratch.path(), MnistPart::Test, {3, 4});
  const CheckReport report = check_mnist(scratch.path());
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.count, 4);
  EXPECT_THAT(report.sizes, ElementsAre(testing::Pair("3 x 2 x 1", 4)));
}

}  // namespace
}  // namespace trestle::data
