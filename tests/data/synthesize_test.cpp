#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "tests/data/scratch.h"
#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/files/image_pairs.h"
#include "trestle/data/files/mnist_files.h"
#include "trestle/data/synthetic/synthesize.h"
#include "trestle/data/synthetic/synthetic_folder.h"

namespace trestle::data {
namespace {

using support::message_of;
using testing::AllOf;
using testing::Gt;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Lt;
using testing::SizeIs;

PairListing pairs_in(const Scratch& scratch) {
  return list_pairs(scratch / "train_hq", scratch / "train_masks", carvana_suffix);
}

TEST(SynthesizeCarvana, WritesTheLayoutOfTheOriginal) {
  const Scratch scratch;
  std::int64_t steps = 0;
  synthesize_carvana(
      scratch.path(), 18,
      {.width = 96, .height = 64, .progress = [&](std::int64_t done, std::int64_t all) {
         EXPECT_EQ(done, ++steps);
         EXPECT_EQ(all, 18);
       }});
  EXPECT_EQ(steps, 18);
  const PairListing listing = pairs_in(scratch);
  EXPECT_THAT(listing.problems, IsEmpty());
  EXPECT_THAT(listing.pairs, SizeIs(18));
  for (const ImagePair& pair : listing.pairs) {
    for (const auto& file : {pair.image, pair.mask}) {
      EXPECT_EQ(read_image(file).width, 96);
      EXPECT_EQ(read_image(file).height, 64);
    }
    EXPECT_THAT(pair.id, testing::MatchesRegex("[0-9a-f]{12}_(0[1-9]|1[0-6])"));
    EXPECT_EQ(pair.image.extension(), ".jpg");
    EXPECT_EQ(pair.mask.filename(), pair.id + "_mask.gif");
  }
}

TEST(SynthesizeCarvana, MasksAreCarsAndPicturesShowThem) {
  const Scratch scratch;
  synthesize_carvana(scratch.path(), 32, {.width = 120, .height = 80, .seed = 5});
  for (const ImagePair& pair : pairs_in(scratch).pairs) {
    const Image mask = read_image(pair.mask);
    const double share = std::ranges::count(mask.pixels, 1) / (120.0 * 80.0);
    EXPECT_THAT(share, AllOf(Gt(0.05), Lt(0.5))) << pair.id;
    for (int x = 0; x < mask.width; ++x) {  // the whole car is in the picture
      ASSERT_EQ(mask.at(x, 0), 0) << pair.id;
      ASSERT_EQ(mask.at(x, mask.height - 1), 0) << pair.id;
    }
    // The tyres are far darker than the empty room, so the darkest pixel lies in the mask.
    const Image image = read_image(pair.image);
    int darkest = 255 * 3, at = 0;
    for (int i = 0; i < 120 * 80; ++i) {
      const int sum = image.pixels[3 * i] + image.pixels[3 * i + 1] + image.pixels[3 * i + 2];
      if (sum < darkest) darkest = sum, at = i;
    }
    EXPECT_EQ(mask.pixels[at], 1) << pair.id;
  }
}

TEST(Synthesize, TheSeedDeterminesEveryByte) {
  const Scratch a, b, c;
  for (const auto& [scratch, seed] : {std::pair{&a, 1u}, std::pair{&b, 1u}, std::pair{&c, 2u}}) {
    synthesize_carvana(*scratch / "cars", 2, {.width = 48, .height = 32, .seed = seed});
    synthesize_mnist(*scratch / "digits", 12, {.seed = seed});
  }
  auto content = [](const Scratch& scratch) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(scratch.path())) {
      if (entry.is_regular_file()) {
        files[std::filesystem::relative(entry, scratch.path()).string()] = read_file(entry);
      }
    }
    return files;
  };
  EXPECT_THAT(content(a), SizeIs(8 + 4)) << "four files are markers";
  EXPECT_EQ(content(a), content(b));
  EXPECT_NE(content(a), content(c));
}

TEST(SynthesizeMnist, WritesFourFilesWithAllDigits) {
  const Scratch scratch;
  std::int64_t last = 0;
  synthesize_mnist(scratch.path(), 120,
                   {.progress = [&](std::int64_t done, std::int64_t) { last = done; }});
  EXPECT_EQ(last, 140);
  const MnistArrays train = read_mnist(scratch.path(), MnistPart::Train);
  EXPECT_EQ(train.images.count, 120);
  EXPECT_EQ(train.images.rows, 28);
  for (int digit = 0; digit < 10; ++digit) EXPECT_EQ(std::ranges::count(train.labels, digit), 12);
  EXPECT_FALSE(std::ranges::is_sorted(train.labels));
  EXPECT_EQ(read_mnist(scratch.path(), MnistPart::Test).images.count, 20);
}

// Nearest mean picture: a weak classifier that must be far better than chance, and not perfect.
TEST(SynthesizeMnist, DigitsCanBeClassified) {
  const Scratch scratch;
  synthesize_mnist(scratch.path(), 600, {.test_count = 200});
  const MnistArrays train = read_mnist(scratch.path(), MnistPart::Train);
  const MnistArrays test = read_mnist(scratch.path(), MnistPart::Test);
  std::array<std::array<double, 784>, 10> means = {};
  for (int i = 0; i < 600; ++i) {
    for (int p = 0; p < 784; ++p)
      means[train.labels[i]][p] += train.images.pixels[i * 784 + p] / 60.0;
  }
  int hits = 0;
  for (int i = 0; i < 200; ++i) {
    int best = 0;
    double nearest = 1e18;
    for (int digit = 0; digit < 10; ++digit) {
      double distance = 0;
      for (int p = 0; p < 784; ++p) {
        const double d = test.images.pixels[i * 784 + p] - means[digit][p];
        distance += d * d;
      }
      if (distance < nearest) nearest = distance, best = digit;
    }
    hits += best == test.labels[i];
  }
  EXPECT_THAT(hits, AllOf(Gt(130), Lt(200)));
}

TEST(Synthesize, RejectsInvalidArguments) {
  const Scratch scratch;
  EXPECT_THROW(synthesize_carvana(scratch.path(), 0), UsageError);
  EXPECT_THROW(synthesize_carvana(scratch.path(), 1, {.width = 8}), UsageError);
  EXPECT_THROW(synthesize_mnist(scratch.path(), -1), UsageError);
  write_file(scratch / "file", "x");
  EXPECT_THROW(synthesize_mnist(scratch / "file", 10), UsageError);
  EXPECT_THROW(synthesize_mnist(scratch / "file" / "below", 10), FileError);
}

int entries(const std::filesystem::path& folder) {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(SyntheticFolder, TheMarkerDescribesTheData) {
  const Scratch scratch;
  synthesize_carvana(scratch / "cars", 2, {.width = 48, .height = 32, .seed = 7});
  synthesize_mnist(scratch / "digits", 12);
  const std::string cars = "2 images of cars, 48 x 32 pixels, seed 7";
  for (const char* folder : {"cars", "cars/train_hq", "cars/train_masks"})
    EXPECT_EQ(synthetic_data_in(scratch / folder), cars) << folder;
  EXPECT_EQ(synthetic_data_in(scratch / "digits"),
            "12 digits to train on, 2 to test with, seed 42");
  EXPECT_EQ(synthetic_data_in(scratch.path()), std::nullopt);
  EXPECT_EQ(synthetic_data_in(scratch / "nowhere"), std::nullopt);
  EXPECT_EQ(entries(scratch.path()), 2) << "no other files are left";
}

TEST(SyntheticFolder, ExistingFilesAreNotOverwritten) {
  const Scratch scratch;
  const MnistFiles real = mnist_paths(scratch / "mnist", MnistPart::Train);
  std::filesystem::create_directory(scratch / "mnist");
  write_idx_labels(real.labels, {1, 2, 3});
  EXPECT_THAT(message_of([&] { synthesize_mnist(scratch / "mnist", 12); }),
              AllOf(HasSubstr("mnist"), HasSubstr("already has files")));
  EXPECT_EQ(read_idx_labels(real.labels), (IdxLabels{1, 2, 3}));
  EXPECT_EQ(entries(scratch / "mnist"), 1);
  synthesize_mnist(scratch / "drawn", 12);
  const std::string before = read_file(scratch / "drawn/train-images-idx3-ubyte");
  EXPECT_THAT(message_of([&] { synthesize_mnist(scratch / "drawn", 12, {.seed = 1}); }),
              AllOf(HasSubstr("already has synthetic data: 12 digits"), HasSubstr("Remove")));
  EXPECT_EQ(read_file(scratch / "drawn/train-images-idx3-ubyte"), before);
}

TEST(SyntheticFolder, AFailureLeavesNoFiles) {
  const Scratch scratch;
  EXPECT_THROW(make_synthetic_folder(scratch / "a/b", "nothing",
                                     [](const std::filesystem::path& folder) {
                                       write_file(folder / "half", "x");
                                       throw FileError("disk full");
                                     }),
               FileError);
  EXPECT_EQ(entries(scratch / "a"), 0);
}

// Two threads create the same data at once: one creates them, the other gets an error.
TEST(SyntheticFolder, TwoAtOnceCreateOneCompleteFolder) {
  const Scratch scratch;
  for (int round = 0; round < 50; ++round) {
    const std::filesystem::path out = scratch / std::to_string(round);
    std::atomic<int> made = 0, rejected = 0;
    const auto make = [&](const std::string& who) {
      try {
        make_synthetic_folder(out, who, [&](const std::filesystem::path& folder) {
          for (const char* name : {"a", "b", "c"}) write_file(folder / name, who);
        });
        ++made;
      } catch (const Error&) {
        ++rejected;
      }
    };
    std::thread first(make, "first"), second(make, "second");
    first.join();
    second.join();
    EXPECT_EQ(made, 1);
    EXPECT_EQ(rejected, 1);
    const std::string who = *synthetic_data_in(out);
    for (const char* name : {"a", "b", "c"}) EXPECT_EQ(read_file(out / name), who);
    EXPECT_EQ(entries(scratch.path()), round + 1) << "no other files are left";
  }
}

}  // namespace
}  // namespace trestle::data
