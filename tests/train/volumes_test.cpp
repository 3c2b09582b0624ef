// A run on volumes, from the files to a mask in the same space.
#include <gmock/gmock.h>

#include "tests/support/message_of.h"
#include "tests/train/training.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/files/nifti.h"
#include "trestle/data/files/npy.h"
#include "trestle/data/files/volume_file.h"
#include "trestle/data/sliding_window.h"
#include "trestle/data/volumes.h"
#include "trestle/device/device.h"
#include "trestle/models/unet3d.h"
#include "trestle/train/dry_run.h"
#include "trestle/train/levels/levels.h"
#include "trestle/train/measure.h"
#include "trestle/train/predict/evaluator.h"
#include "trestle/train/predict/predictor.h"
#include "trestle/train/task.h"
#include "trestle/train/volume_picture.h"
#include "trestle/view/chart/canvas.h"

namespace trestle::train {
namespace {

using support::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(VolumePicture, HasContoursOfTruthAndPrediction) {
  at::Tensor inputs = torch::zeros({2, 1, 4, 8, 8});
  at::Tensor targets = torch::zeros({2, 4, 8, 8}, torch::kLong);
  targets.slice(1, 1, 3).slice(2, 2, 6).slice(3, 2, 6) = 1;
  at::Tensor output = torch::zeros({2, 2, 4, 8, 8});
  output.select(1, 0).fill_(0.5);
  const auto count = [&](view::Colour colour) {
    const data::Image image = draw_volumes(inputs, targets, output, {.title = "a", .names = {}});
    int pixels = 0;
    for (int y = 0; y < image.height; ++y)
      for (int x = 0; x < image.width; ++x)
        pixels += view::Colour{image.at(x, y, 0), image.at(x, y, 1), image.at(x, y, 2)} == colour;
    return pixels;
  };
  const view::Colour yellow = {250, 204, 21};
  EXPECT_GT(count(yellow), 1000);
  EXPECT_EQ(count(view::alarm), 0) << "nothing is predicted";
  output.select(1, 1).copy_(targets);
  EXPECT_GT(count(view::alarm), 300);
  EXPECT_GT(count(yellow), 300) << "the broad line shows beside the thin one";
  // Two regions: the planes cut one of them, not the space between them.
  targets.zero_();
  targets.slice(1, 0, 1).slice(2, 0, 3).slice(3, 0, 3) = 1;
  targets.slice(1, 3, 4).slice(2, 5, 8).slice(3, 5, 8) = 1;
  output.select(1, 1).copy_(targets);
  EXPECT_GT(count(view::alarm), 100);
  EXPECT_THROW(draw_volumes(inputs, targets[0], output, {}), UsageError);
  const data::Image strip = draw_slices(inputs[0][0], targets[0], "a volume");
  EXPECT_GT(strip.width, 4 * 8 * 8);
  EXPECT_THROW(draw_slices(inputs[0], targets[0], ""), UsageError);
}

class VolumeRun : public Training {
 protected:
  static void SetUpTestSuite() {
    Training::SetUpTestSuite();
    virtual_devices(2);  // before a test's first backward on the CPU
    data::synthesize_volumes(base_ / "scans", 6,
                             {.depth = 8, .height = 20, .width = 18, .seed = 4});
  }
  static recipe::Recipe volume_recipe() {
    recipe::Recipe wanted = recipe();
    wanted.model = {};
    wanted.model.name = "unet3d";
    wanted.model.classes = 3;
    wanted.model.width = 4;
    wanted.model.depth = 2;
    wanted.model.pooling = {"1x2x2", "2x2x2"};
    wanted.data = {};
    wanted.data.name = "volumes";
    wanted.data.images = (base_ / "scans/volumes").string();
    wanted.data.masks = (base_ / "scans/labels").string();
    wanted.data.patch = {8, 16, 16};
    wanted.data.patches_per_volume = 2;
    wanted.data.workers = 1;
    wanted.pipeline.balance = {3, 9};
    wanted.train.batch = 2;
    wanted.train.epochs = 1;
    return wanted;
  }
};

TEST_F(VolumeRun, TrainsAndPredictsInTheSpaceOfTheFile) {
  const TrainResult trained = train(volume_recipe(), hooks());
  ASSERT_TRUE(trained.best_metric.has_value());
  EXPECT_TRUE(fs::exists(trained.run_folder / "pictures/epoch_001.png"));
  EXPECT_THAT(read_file(trained.run_folder / "recipe.toml"),
              HasSubstr("spacing = \"2 x 1 x 1 mm\""));
  const fs::path files = base_ / "new";
  fs::create_directories(files);
  fs::copy_file(base_ / "scans/volumes/scan_003.nii.gz", files / "a.nii.gz");
  data::Volume other = data::read_volume(base_ / "scans/volumes/scan_001.nii.gz");
  other.space->pixdim[3] = 5;
  data::write_nifti(files / "thick.nii", other, data::VoxelType::Int16);
  data::Volume two = data::read_volume(base_ / "scans/volumes/scan_001.nii.gz");
  two.channels = 2;
  two.values.insert(two.values.end(), two.values.begin(), two.values.end());
  data::write_nifti(files / "two.nii", two, data::VoxelType::Int16);
  write_file(files / "words.txt", "words");
  PredictOptions options{
      .run = trained.run_folder, .images = files, .out = files, .devices = "cpu"};
  EXPECT_THROW(predict(options), UsageError) << "masks would be taken for volumes";
  const fs::path masks = options.out = base_ / "masks_of_new";
  const PredictResult result = predict(options);
  EXPECT_THAT(result.problems, ElementsAre(AllOf(HasSubstr("thick.nii"), HasSubstr("5 x 1 x 1 mm"),
                                                 HasSubstr("trained on 2 x 1 x 1 mm")),
                                           AllOf(HasSubstr("new/two.nii: the model 'unet3d'"),
                                                 HasSubstr("they have 2")),
                                           HasSubstr("words.txt")));
  EXPECT_THAT(result.masks, ElementsAre(masks / "a_mask.nii.gz"));
  const data::Volume volume = data::read_volume(files / "a.nii.gz");
  const data::Volume mask = data::read_volume(masks / "a_mask.nii.gz");
  EXPECT_EQ(mask.sides, volume.sides);
  EXPECT_EQ(mask.space->affine(), volume.space->affine());
  EXPECT_LE(*std::ranges::max_element(mask.values), 2);
  const data::Image strip = data::read_image(masks / "a_slices.png");
  EXPECT_GT(strip.width, 6 * 18);
  EXPECT_THROW(predict(options), UsageError) << "masks would be replaced";
  options.overwrite = Overwrite::Allow;
  EXPECT_EQ(predict(options).masks, result.masks);
  EXPECT_EQ(data::read_volume(masks / "a_mask.nii.gz").values, mask.values);
  EXPECT_THAT(to_json(result), AllOf(HasSubstr("a_mask.nii.gz"), HasSubstr("a_slices.png")));
}

TEST_F(VolumeRun, EvaluatesOnTheWindowsOfOtherVolumes) {
  const TrainResult trained = train(volume_recipe(), hooks());
  const EvaluateResult own = evaluate({.run = trained.run_folder});
  EXPECT_EQ(own.metric_name, "voxel_dice");
  EXPECT_EQ(own.metric, *trained.best_metric);
  EXPECT_EQ(own.examples, 4) << "one volume of 20 x 18 has four windows of 16 x 16";
  data::synthesize_volumes(base_ / "others", 2, {.depth = 8, .height = 16, .width = 16, .seed = 9});
  const EvaluateResult others =
      evaluate({.run = trained.run_folder,
                .changes = {{"data.images", (base_ / "others/volumes").string()},
                            {"data.masks", (base_ / "others/labels").string()}}});
  EXPECT_EQ(others.examples, 2) << "all of them";
}

// The program's own loop over windows is the oracle.
TEST_F(VolumeRun, PredictsWithOtherWindowsThanTheRuns) {
  const TrainResult trained = train(volume_recipe(), hooks());
  const fs::path scan = base_ / "scans/volumes/scan_003.nii.gz";
  const at::Tensor input = data::load_volume(scan, data::VolumeNormalization::Volume);
  nn::Layers net =
      models::unet3d({.classes = 3, .width = 4, .depth = 2, .pooling = {{1, 2, 2}, {2, 2, 2}}});
  checkpoint::load_weights(net, trained.run_folder / "best.safetensors");
  net.eval();
  const auto expect_windows = [&](const std::string& name, const Changes& changes,
                                  const data::SlidingWindowOptions& windows) {
    const PredictOptions options{.run = trained.run_folder,
                                 .images = scan,
                                 .out = base_ / "windows" / name,
                                 .devices = "cpu",
                                 .changes = changes};
    const data::Volume mask = data::read_volume(predict(options).masks.at(0));
    const at::NoGradGuard no_grad;
    const at::Tensor expected =
        data::slide(input, windows, [&](const at::Tensor& x) { return net.forward(x); }).argmax(0);
    const at::Tensor ids = torch::tensor(mask.values).reshape(mask.sides).to(at::kLong);
    EXPECT_LT(ids.ne(expected).sum().item<std::int64_t>(), 5) << name << ": ties may differ";
    return ids;
  };
  const data::Sides patch = {8, 16, 16};
  const at::Tensor own = expect_windows("own", {}, {.window = patch});
  const at::Tensor other =
      expect_windows("other", {{"data.overlap", "0"}, {"data.blend", "constant"}},
                     {.window = patch, .overlap = 0, .blend = data::Blend::Constant});
  EXPECT_FALSE(own.equal(other)) << "the windows have an effect";
}

// Volumes whose values are their classes, so that each patch shows whether its mask was mirrored
// with it.
TEST_F(VolumeRun, FlipsPatchesTogetherWithTheirMasks) {
  data::Volume volume{{.channels = 1, .sides = {6, 7, 8}, .space = data::VolumeSpace{}}};
  for (int voxel = 0; voxel < 6 * 7 * 8; ++voxel)
    volume.values.push_back(static_cast<float>(voxel * voxel % 11 == 3 ? 1 : 0));
  for (const char* folder : {"same/x", "same/y"}) {
    fs::create_directories(base_ / folder);
    for (const char* name : {"a.nii.gz", "b.nii.gz"})
      data::write_nifti(base_ / folder / name, volume, data::VoxelType::UInt8);
  }
  recipe::Recipe wanted = volume_recipe();
  wanted.data.images = (base_ / "same/x").string();
  wanted.data.masks = (base_ / "same/y").string();
  wanted.data.normalize = "none";
  wanted.data.patch = {6, 7, 8};  // whole volumes: only flips make a difference
  wanted.data.patches_per_volume = 16;
  wanted.data.validation = 0.5;
  wanted.data.flip_axes = {"slices", "columns"};
  const auto batches = [&] {
    Notes notes;
    const Task task = make_task(wanted, notes);
    std::vector<at::Tensor> inputs;
    for (const data::Batch& batch : task.training->epoch(0)) {
      EXPECT_TRUE(batch.inputs.squeeze(1).equal(batch.targets.to(at::kFloat)));
      for (const at::Tensor& one : batch.inputs.unbind(0)) inputs.push_back(one[0]);
    }
    for (const data::Batch& batch : task.validation->epoch(0))
      EXPECT_TRUE(batch.inputs.squeeze().equal(torch::tensor(volume.values).reshape({6, 7, 8})));
    return inputs;
  };
  const std::vector<at::Tensor> drawn = batches();
  const at::Tensor plain = torch::tensor(volume.values).reshape({6, 7, 8});
  std::vector<int> times(4);
  for (const at::Tensor& one : drawn) {
    const std::vector<at::Tensor> all = {plain, plain.flip(0), plain.flip(2), plain.flip({0, 2})};
    const auto found = std::ranges::find_if(all, [&](const auto& each) { return one.equal(each); });
    ASSERT_NE(found, all.end()) << "rows are not flipped";
    ++times[static_cast<std::size_t>(found - all.begin())];
  }
  EXPECT_THAT(times, ::testing::Each(::testing::Gt(0)));
  wanted.data.workers = 3;
  const std::vector<at::Tensor> again = batches();
  for (std::size_t i = 0; i < drawn.size(); ++i) EXPECT_TRUE(again[i].equal(drawn[i])) << i;
}

TEST_F(VolumeRun, ResumesWithVariationsToSameBits) {
  recipe::Recipe wanted = volume_recipe();
  wanted.devices.use = "cpu";
  wanted.devices.threads = 1;
  wanted.data.flip_axes = {"slices", "rows", "columns"};
  wanted.data.intensity = 0.2;
  wanted.train.epochs = 2;
  const TrainResult whole = train(wanted, hooks());
  const TrainResult stopped = train(wanted, hooks(7));  // in the second epoch
  ASSERT_FALSE(stopped.finished);
  const TrainResult rest = resume(stopped.run_folder, {}, hooks());
  expect_same(whole.run_folder / "last", rest.run_folder / "last");
  EXPECT_EQ(metrics(whole.run_folder), metrics(rest.run_folder));
  wanted.data.flip_axes = {};
  wanted.data.intensity = 0;
  const TrainResult plain = train(wanted, hooks());
  EXPECT_NE(metrics(whole.run_folder), metrics(plain.run_folder));
  EXPECT_THROW(resume(stopped.run_folder, {{"data.flip_axes", "rows"}}, hooks()), UsageError);
}

TEST_F(VolumeRun, TrainsOnArraysOfNumPyWithoutSpacing) {
  for (const char* folder : {"arrays/x", "arrays/y"}) fs::create_directories(base_ / folder);
  for (int i = 0; i < 4; ++i) {
    std::string bytes;
    for (int j = 0; j < 8 * 8 * 8; ++j) bytes += static_cast<char>((i + j) % 5 == 0 ? 200 : 50);
    const data::NpyArray array{.type = "u1", .shape = {8, 8, 8}, .bytes = bytes};
    data::write_npy(base_ / text("arrays/x/", i, ".npy"), array);
    for (char& value : bytes) value = static_cast<unsigned char>(value) == 200 ? '\1' : '\0';
    data::write_npy(base_ / text("arrays/y/", i, ".npy"),
                    {.type = "u1", .shape = {8, 8, 8}, .bytes = bytes});
  }
  recipe::Recipe wanted = volume_recipe();
  wanted.data.images = (base_ / "arrays/x").string();
  wanted.data.masks = (base_ / "arrays/y").string();
  wanted.data.validation = 0.25;
  wanted.data.patch = {8, 8, 8};
  wanted.model.classes = 2;
  const TrainResult trained = train(wanted, hooks());
  const PredictResult result = predict(
      {.run = trained.run_folder, .images = base_ / "arrays/x/2.npy", .out = base_ / "arrays/out"});
  ASSERT_THAT(result.masks, ElementsAre(base_ / "arrays/out/2_mask.npy"));
  EXPECT_EQ(data::read_npy(result.masks[0].string()).shape, (std::vector<std::int64_t>{8, 8, 8}));
}

// One patch and several choose other kernels, with other memory.
TEST_F(VolumeRun, DryRunOfLargePatchesIsNearTheMeasuredPeaks) {
  data::synthesize_volumes(base_ / "large", 5, {.depth = 48, .height = 80, .width = 80, .seed = 6});
  for (const std::int64_t batch : {2, 4}) {
    recipe::Recipe wanted = volume_recipe();
    wanted.data.images = (base_ / "large/volumes").string();
    wanted.data.masks = (base_ / "large/labels").string();
    wanted.data.patch = {48, 80, 80};
    wanted.model.depth = 1;
    wanted.model.pooling = {};
    wanted.pipeline.balance = {2, 5};
    wanted.pipeline.micro_batches = 2;
    wanted.train.batch = batch;
    const RunPlan plan = plan_on_paper(wanted, {});
    const StepTimes measured = measure_steps(wanted, {.warm_up = 0, .steps = 1});
    ASSERT_EQ(measured.peaks.size(), 2u);
    for (std::size_t stage = 0; stage < 2; ++stage)
      EXPECT_NEAR(static_cast<double>(plan.stages[stage].predicted_peak) /
                      static_cast<double>(measured.peaks[stage].measured),
                  1.15, 0.15)
          << "batch " << batch << ", stage " << stage;
  }
}

TEST_F(VolumeRun, NamesWhatDoesNotFit) {
  const auto refusal = [](const recipe::Recipe& recipe) {
    return message_of<UsageError>([&] { train(recipe, hooks()); });
  };
  recipe::Recipe wanted = volume_recipe();
  wanted.data.patch = {};
  EXPECT_THAT(refusal(wanted), HasSubstr("'patch' in [data]"));
  wanted = volume_recipe();
  wanted.data.patch = {8, 16, 32};
  EXPECT_THAT(refusal(wanted), AllOf(HasSubstr("scan_00"), HasSubstr("8 x 20 x 18")));
  wanted = volume_recipe();
  wanted.data.spacing = "1 x 1 x 1 mm";
  EXPECT_THAT(refusal(wanted), HasSubstr("the volumes have 2 x 1 x 1 mm"));
  wanted.data.spacing = "any";
  wanted.data.flip = "both";
  EXPECT_THAT(refusal(wanted),
              AllOf(HasSubstr("'flip' in [data] changes pictures"), HasSubstr("'flip_axes'")));
  wanted.data.flip = "none";
  wanted.data.flip_axes = {"rows", "rows"};
  EXPECT_THAT(refusal(wanted), HasSubstr("'flip_axes' names 'rows' twice"));
  wanted = volume_recipe();
  wanted.model.channels = 2;
  EXPECT_THAT(refusal(wanted), HasSubstr("the volumes of 'volumes' have 1"));
  wanted = volume_recipe();
  wanted.data.patch = {1, 2, 2};
  EXPECT_THAT(refusal(wanted), AllOf(HasSubstr("(channels, slices, rows, columns)"),
                                     HasSubstr("'pooling' in [model]")));
}

}  // namespace
}  // namespace trestle::train
