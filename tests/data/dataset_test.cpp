#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/data/scratch.h"
#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/data/arrays.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/files/resize.h"
#include "trestle/data/loader.h"
#include "trestle/data/mnist.h"
#include "trestle/data/random_tensors.h"
#include "trestle/data/segmentation.h"
#include "trestle/data/split.h"
#include "trestle/data/synthetic/synthesize.h"
#include "trestle/data/tensor_dataset.h"

namespace trestle::data {
namespace {

using support::message_of;
using testing::AllOf;
using testing::HasSubstr;

TEST(Mnist, ExamplesAreFractionsAndLabels) {
  const Scratch scratch;
  const MnistFiles files = mnist_paths(scratch.path(), MnistPart::Train);
  write_idx_images(files.images, {2, 1, 3, {0, 51, 255, 1, 2, 3}});
  write_idx_labels(files.labels, {7, 3});
  const MnistDataset data(scratch.path(), MnistPart::Train);
  EXPECT_EQ(data.size(), 2);
  const Sample sample = data.get(0);
  EXPECT_EQ(sample.input.sizes(), (std::vector<std::int64_t>{1, 1, 3}));
  EXPECT_EQ(sample.input.scalar_type(), at::kFloat);
  EXPECT_EQ(sample.input[0][0][1].item<float>(), 0.2f);
  EXPECT_EQ(sample.input[0][0][2].item<float>(), 1.0f);
  EXPECT_EQ(sample.target.dim(), 0);
  EXPECT_EQ(sample.target.scalar_type(), at::kLong);
  EXPECT_EQ(data.get(1).target.item<std::int64_t>(), 3);
  EXPECT_EQ(data.get(1).name, "1");
  EXPECT_THROW(data.get(2), UsageError);
  EXPECT_THROW(data.get(-1), UsageError);
  EXPECT_THROW(MnistDataset(scratch.path(), MnistPart::Test), UsageError);
}

TEST(Arrays, BytesAreFractionsAndIntegersAreClasses) {
  const std::string golden = TRESTLE_SOURCE_DIR "/tests/golden/npy/";
  const ArrayDataset floats(golden + "set.npz:x", golden + "set.npz:y");
  EXPECT_EQ(floats.size(), 2);
  EXPECT_EQ(floats.classes(), 2);
  EXPECT_TRUE(floats.get(1).input.equal(at::tensor({3.0f, 4.0f, 5.0f})));
  EXPECT_EQ(floats.get(1).target.dim(), 0);
  EXPECT_EQ(floats.get(0).target.item<std::int64_t>(), 1);
  for (const char* type : {"b1", "i1", "u2", "i2", "u4", "i4", "i8"}) {
    const Sample sample = ArrayDataset(golden + type + ".npy", golden + type + ".npy").get(0);
    EXPECT_EQ(sample.input.scalar_type(), at::kFloat) << type;
    EXPECT_EQ(sample.input[1].item<float>(), 1) << type;
    EXPECT_EQ(sample.target[1].item<std::int64_t>(), 1) << type;
  }
  for (const char* type : {"f2", "f4", "f8"}) {
    const Sample sample = ArrayDataset(golden + type + ".npy", golden + type + ".npy").get(0);
    EXPECT_EQ(sample.input.scalar_type(), at::kFloat) << type;
    EXPECT_EQ(sample.target.scalar_type(), at::kFloat) << type;
  }
  const ArrayDataset bytes(golden + "u1.npy", golden + "set.npz:y");
  EXPECT_EQ(bytes.get(1).input[2].item<float>(), 5 / 255.0f);
  EXPECT_THROW(bytes.get(2), UsageError);
  // Tensors of Python's torch.save, by name or alone.
  const std::string saved = TRESTLE_SOURCE_DIR "/tests/golden/weights/";
  const ArrayDataset tensors(saved + "python.pt:layer.weight", saved + "python.pt:mask");
  EXPECT_EQ(tensors.size(), 3);
  EXPECT_TRUE(tensors.get(1).input.equal(at::tensor({0.5f, 0.625f, 0.75f, 0.875f})));
  EXPECT_EQ(tensors.get(2).target.item<std::int64_t>(), 1);
  EXPECT_EQ(tensors.get(2).target.scalar_type(), at::kLong);
  const ArrayDataset narrow(saved + "python.pt:brain", saved + "one_tensor.pt");
  EXPECT_EQ(narrow.get(1).input.item<float>(), 3);
  EXPECT_EQ(narrow.get(1).input.scalar_type(), at::kFloat);
  EXPECT_EQ(narrow.get(0).target.scalar_type(), at::kFloat);
  EXPECT_THROW(ArrayDataset(saved + "python.pt:layer.steps", saved + "one_tensor.pt"), FormatError)
      << "a single number";
  const ArrayDataset negated(saved + "negated.pt:negated", saved + "negated.pt:plain");
  for (const std::int64_t i : {0, 1, 2})
    EXPECT_EQ(negated.get(i).input.item<float>(), negated.get(i).target.item<float>());
  for (const char* none : {"none.npy", "none.npz:x", "none.pt:x"})
    EXPECT_THROW(ArrayDataset(saved + none, saved + "one_tensor.pt"), UsageError) << none;
  EXPECT_THROW(ArrayDataset(saved + "command.pt", saved + "one_tensor.pt"), FormatError);
  EXPECT_THROW(ArrayDataset(golden + "row.npy", golden + "set.npz:y"), FormatError);
  EXPECT_THROW(ArrayDataset(golden + "scalar.npy", golden + "scalar.npy"), FormatError);
}

TEST(Arrays, OtherFilesAreNamedForWhatTheyAre) {
  const Scratch scratch;
  const std::string targets = TRESTLE_SOURCE_DIR "/tests/golden/npy/u1.npy";
  const auto message = [&](const char* name, std::string_view content) {
    write_file(scratch / name, content);
    return message_of([&] { ArrayDataset((scratch / name).string(), targets); });
  };
  EXPECT_THAT(message("x.csv", "1,2\n"),
              AllOf(HasSubstr("x.csv: is a table of text (.csv)"),
                    HasSubstr("numpy.save(\"x.npy\", numpy.loadtxt(\"x.csv\"")));
  EXPECT_THAT(message("x.h5", "?"), HasSubstr("is a .h5 file"));
  EXPECT_THAT(message("x.npy", ""), HasSubstr("x.npy: the file is empty"));
}

TEST(RandomTensors, AreNormalNumbersWithOneHotTargets) {
  const RandomTensors data({.shape = {3, 40, 50}, .classes = 7, .count = 30, .seed = 5});
  EXPECT_EQ(data.size(), 30);
  std::vector<std::int64_t> seen(7, 0);
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const Sample sample = data.get(i);
    EXPECT_EQ(sample.input.sizes(), (std::vector<std::int64_t>{3, 40, 50}));
    EXPECT_NEAR(sample.input.mean().item<double>(), 0, 0.07);
    EXPECT_NEAR(sample.input.std().item<double>(), 1, 0.07);
    EXPECT_EQ(sample.target.scalar_type(), at::kFloat);
    EXPECT_EQ(sample.target.sum().item<double>(), 1);
    ++seen[static_cast<std::size_t>(sample.target.argmax().item<std::int64_t>())];
  }
  EXPECT_GT(std::count_if(seen.begin(), seen.end(), [](std::int64_t n) { return n > 0; }), 4);
}

TEST(RandomTensors, DependOnlyOnSeedAndNumber) {
  const RandomTensorsOptions options = {.shape = {4}, .classes = 9, .count = 50, .seed = 5};
  RandomTensorsOptions other = options;
  other.seed = 6;
  const RandomTensors data(options), again(options), others(other);
  at::manual_seed(1);
  const at::Tensor late = data.get(49).input;
  at::manual_seed(2);
  data.get(3);
  EXPECT_TRUE(again.get(49).input.equal(late));
  EXPECT_TRUE(again.get(49).target.equal(data.get(49).target));
  EXPECT_FALSE(others.get(49).input.equal(late));
  EXPECT_FALSE(data.get(48).input.equal(late));
}

TEST(RandomTensors, TargetsCanBeClassesOrNumbers) {
  const Sample classes =
      RandomTensors({.shape = {2}, .classes = 3, .count = 1, .targets = RandomTargets::Class})
          .get(0);
  EXPECT_EQ(classes.target.dim(), 0);
  EXPECT_EQ(classes.target.scalar_type(), at::kLong);
  EXPECT_LT(classes.target.item<std::int64_t>(), 3);
  const Sample numbers =
      RandomTensors({.shape = {2}, .classes = 3, .count = 1, .targets = RandomTargets::Normal})
          .get(0);
  EXPECT_EQ(numbers.target.sizes(), (std::vector<std::int64_t>{3}));
  EXPECT_NE(numbers.target[0].item<float>(), numbers.target[1].item<float>());
}

TEST(RandomTensors, RejectInvalidOptions) {
  EXPECT_THAT(message_of<UsageError>([] { RandomTensors({.classes = 3, .count = 1}); }),
              HasSubstr("the shape is empty"));
  EXPECT_THAT(message_of<UsageError>([] {
                RandomTensors({.shape = {3, 0}, .classes = 3, .count = 1});
              }),
              HasSubstr("a size of the shape is 0"));
  EXPECT_THAT(message_of<UsageError>([] { RandomTensors({.shape = {3}, .count = 1}); }),
              HasSubstr("the number of classes is 0"));
  const RandomTensors data({.shape = {3}, .classes = 2, .count = 4});
  EXPECT_THROW(data.get(4), UsageError);
  EXPECT_THROW(data.get(-1), UsageError);
  EXPECT_THAT(message_of<UsageError>([] { parse_random_targets("onehot"); }),
              HasSubstr("did you mean 'one_hot'?"));
}

class Cars : public testing::Test {
 protected:
  void SetUp() override { synthesize_carvana(scratch_.path(), 3, {.width = 59, .height = 40}); }

  SegmentationDataset open(double scale = 1.0) const {
    return {images_, masks_, {.picture = {.scale = scale}, .mask_suffix = carvana_suffix}};
  }

  Scratch scratch_;
  std::filesystem::path images_ = scratch_ / "train_hq";
  std::filesystem::path masks_ = scratch_ / "train_masks";
};

TEST_F(Cars, ExamplesHavePillowsPixels) {
  const SegmentationDataset data = open(0.5);
  ASSERT_EQ(data.size(), 3);
  const Sample sample = data.get(1);
  EXPECT_EQ(sample.input.sizes(), (std::vector<std::int64_t>{3, 20, 29}));
  EXPECT_EQ(sample.input.scalar_type(), at::kFloat);
  EXPECT_EQ(sample.target.sizes(), (std::vector<std::int64_t>{20, 29}));
  EXPECT_EQ(sample.target.scalar_type(), at::kLong);
  EXPECT_EQ(sample.name, data.pair(1).id);
  const Image small = resize_bicubic(read_image(data.pair(1).image), 29, 20);
  const Image mask = resize_nearest(read_image(data.pair(1).mask), 29, 20);
  for (int y = 0; y < 20; ++y) {
    for (int x = 0; x < 29; ++x) {
      for (int c = 0; c < 3; ++c) {
        ASSERT_EQ(sample.input[c][y][x].item<float>(), small.at(x, y, c) / 255.0f);
      }
      ASSERT_EQ(sample.target[y][x].item<std::int64_t>(), mask.at(x, y));
    }
  }
  EXPECT_TRUE(load_picture(data.pair(1).image, {.scale = 0.5}).equal(sample.input));
}

TEST_F(Cars, MasksAreResizedToThePicturesSize) {
  const Sample sample = open().get(0);
  const Image mask = mask_to_image(sample.target, 59, 40);
  EXPECT_EQ(mask, read_image(open().pair(0).mask));
  EXPECT_EQ(mask_to_image(sample.target.to(at::kByte), 118, 80).width, 118);
  EXPECT_THROW(mask_to_image(sample.input, 59, 40), UsageError);
}

TEST_F(Cars, ScaleIsChecked) {
  for (const double scale : {0.0, -1.0, 1.5, std::nan("")})
    EXPECT_THROW(open(scale), UsageError) << scale;
  EXPECT_THAT(message_of<UsageError>([&] { open(0.02).get(0); }), HasSubstr("leaves no pixels"));
}

TEST_F(Cars, AllMissingMasksAreNamedAtOnce) {
  for (int i = 0; i < 7; ++i) {
    write_jpeg(images_ / ("z" + std::to_string(i) + ".jpg"), Image::blank(4, 4, 3));
  }
  EXPECT_THAT(message_of<UsageError>([&] { open(); }),
              AllOf(HasSubstr("7 examples"), HasSubstr("train_hq/z0.jpg (looked for z0_mask.*)"),
                    HasSubstr("z4.jpg"), HasSubstr("and 2 more"), HasSubstr("data check")));
}

TEST_F(Cars, ErrorsNameTheFile) {
  const SegmentationDataset data = open();
  write_gif_mask(data.pair(0).mask, Image::blank(58, 40, 1));
  EXPECT_THAT(message_of<FormatError>([&] { data.get(0); }),
              AllOf(HasSubstr("58 x 40"), HasSubstr("59 x 40"), HasSubstr("_01_mask.gif")));
  std::filesystem::resize_file(data.pair(1).image, 700);
  EXPECT_THAT(message_of<FormatError>([&] { data.get(1); }), HasSubstr("_02.jpg"));
  std::filesystem::remove(data.pair(2).image);
  EXPECT_THAT(message_of<FileError>([&] { data.get(2); }), HasSubstr("_03.jpg"));
  EXPECT_THROW(data.get(3), UsageError);
}

TEST_F(Cars, OnePartHasTheBitsOfBoth) {
  const SegmentationDataset data = open(0.5);
  const Sample both = data.get(1), input = data.get_part(1, Part::Input),
               target = data.get_part(1, Part::Target);
  EXPECT_TRUE(input.input.equal(both.input));
  EXPECT_TRUE(target.target.equal(both.target));
  EXPECT_FALSE(input.target.defined());
  EXPECT_FALSE(target.input.defined());
  EXPECT_EQ(input.name, both.name);
  EXPECT_EQ(target.name, both.name);
}

TEST_F(Cars, ReadsOnlyTheSizeOfTheOtherPart) {
  const SegmentationDataset data = open();
  const at::Tensor mask = data.get(0).target, image = data.get(1).input;
  std::filesystem::resize_file(data.pair(0).image, 700);  // its header is whole
  EXPECT_TRUE(data.get_part(0, Part::Target).target.equal(mask));
  EXPECT_THROW(data.get_part(0, Part::Input), FormatError);
  std::filesystem::resize_file(data.pair(1).mask, 30);
  EXPECT_TRUE(data.get_part(1, Part::Input).input.equal(image));
  EXPECT_THROW(data.get_part(1, Part::Target), FormatError);
  write_gif_mask(data.pair(2).mask, Image::blank(58, 40, 1));
  for (const Part part : {Part::Input, Part::Target})
    EXPECT_THAT(message_of<FormatError>([&] { data.get_part(2, part); }),
                AllOf(HasSubstr("58 x 40"), HasSubstr("59 x 40"), HasSubstr("_03_mask.gif")));
}

TEST_F(Cars, MaskValuesAreClassIds) {
  const SegmentationDataset data = open();
  Image mask = Image::blank(59, 40, 1);
  mask.pixels[100] = 2;
  std::filesystem::remove(data.pair(0).mask);
  write_png(data.pair(0).mask, mask);  // recognized by its bytes, whatever its name
  EXPECT_THAT(message_of<FormatError>([&] { data.get(0); }), HasSubstr("value 2"));
  const SegmentationDataset three(images_, masks_, {.mask_suffix = "_mask", .classes = 3});
  EXPECT_EQ(three.get(0).target.max().item<std::int64_t>(), 2);
}

TEST(TensorDataset, ExamplesAreRowsOfAnyType) {
  const at::Tensor input = at::arange(24, at::kHalf).reshape({4, 2, 3});
  const at::Tensor target = at::arange(4, at::kLong) % 2 == 0;
  const at::Tensor complex = at::view_as_complex(at::arange(8, at::kFloat).reshape({4, 2})).conj();
  const at::Tensor columns = at::arange(8, at::kByte).reshape({2, 4}).t();
  const auto data = std::make_shared<TensorDataset>(std::vector{input, target, complex, columns});
  EXPECT_EQ(data->size(), 4);
  const Sample sample = data->get(3);
  EXPECT_TRUE(sample.input.equal(input[3]) && sample.input.is_alias_of(input));
  EXPECT_EQ(sample.target.scalar_type(), at::kBool);
  EXPECT_EQ(sample.target.dim(), 0);
  EXPECT_EQ(sample.name, "3");
  ASSERT_EQ(sample.more.size(), 2u);
  const Batch batch = Loader(data, {3, 1, 2}, {.batch = 3}).read(0, 0);
  const at::Tensor rows = at::tensor({3, 1, 2}, at::kLong);
  EXPECT_TRUE(batch.inputs.equal(input.index_select(0, rows)));
  EXPECT_TRUE(batch.targets.equal(target.index_select(0, rows)));
  ASSERT_EQ(batch.more.size(), 2u);
  EXPECT_TRUE(batch.more[0].equal(complex.index_select(0, rows).resolve_conj()));
  EXPECT_TRUE(batch.more[1].equal(columns.index_select(0, rows)));
}

TEST(TensorDataset, OneTensorHasNoTargets) {
  const auto data =
      std::make_shared<TensorDataset>(std::vector{at::rand({5, 2}).requires_grad_(true)});
  EXPECT_FALSE(data->get(0).target.defined());
  EXPECT_FALSE(data->get(0).input.requires_grad());
  const Loader loader(data, {.batch = 5});
  EXPECT_TRUE(loader.read(0, 0, Part::Input).inputs.equal(data->tensors()[0]));
  EXPECT_THROW(loader.read(0, 0), UsageError);
}

TEST(TensorDataset, RejectsTensorsWithoutExamples) {
  using Tensors = std::vector<at::Tensor>;
  const auto made_of = [](Tensors tensors) {
    return message_of<UsageError>([&] { TensorDataset data(std::move(tensors)); });
  };
  EXPECT_THAT(made_of({}), HasSubstr("at least one tensor"));
  EXPECT_THAT(made_of({at::zeros({4, 2}), at::Tensor()}), HasSubstr("tensor 1"));
  EXPECT_THAT(made_of({at::zeros({4}), at::zeros({})}), HasSubstr("single number"));
  EXPECT_THAT(made_of({at::zeros({4}), at::zeros({4, 3}), at::zeros({3})}),
              AllOf(HasSubstr("tensor 2"), HasSubstr("3"), HasSubstr("4")));
  EXPECT_THAT(made_of({at::eye(3).to_sparse()}), HasSubstr("Sparse"));
  EXPECT_THAT(made_of({at::zeros({4}, at::kMeta)}), HasSubstr("meta"));
  EXPECT_THROW(TensorDataset({at::zeros({4})}).get(4), UsageError);
  EXPECT_THROW(TensorDataset({at::zeros({4})}).get(-1), UsageError);
}

TEST(Split, EqualsPythonsRandomSplit) {
  std::istringstream file(read_file(TRESTLE_SOURCE_DIR "/tests/golden/split/random_split.txt"));
  std::string line;
  std::getline(file, line);  // the version
  auto shortened = [](const std::vector<std::int64_t>& all) {
    std::vector<std::int64_t> kept = all;
    if (all.size() > 40) kept.erase(kept.begin() + 20, kept.end() - 20);
    return kept;
  };
  auto numbers = [&] {
    std::getline(file, line);
    std::istringstream in(line);
    return std::vector<std::int64_t>(std::istream_iterator<std::int64_t>(in), {});
  };
  int cases = 0;
  while (std::getline(file, line) && !line.empty()) {
    std::istringstream head(line);
    std::int64_t count = 0;
    double fraction = 0;
    std::uint64_t seed = 0;
    head >> count >> fraction >> seed;
    const Split split = random_split(count, fraction, seed);
    EXPECT_EQ(shortened(split.train), numbers()) << count;
    EXPECT_EQ(shortened(split.validation), numbers()) << count;
    EXPECT_EQ(static_cast<std::int64_t>(split.train.size() + split.validation.size()), count);
    std::getline(file, line);  // empty
    ++cases;
  }
  EXPECT_EQ(cases, 4);
}

TEST(Split, RejectsInvalidArguments) {
  EXPECT_THROW(random_split(10, 1.0, 0), UsageError);
  EXPECT_THROW(random_split(10, -0.1, 0), UsageError);
  EXPECT_THROW(random_split(0, 0.1, 0), UsageError);
  EXPECT_EQ(random_split(3, 0.0, 0).train.size(), 3u);
}

}  // namespace
}  // namespace trestle::data
