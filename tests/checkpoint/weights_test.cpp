#include "trestle/checkpoint/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "tests/fuzz/fuzz.h"
#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/checkpoint/files/weight_names.h"
#include "trestle/models/resnet.h"
#include "trestle/models/unet.h"

namespace trestle::checkpoint {
namespace {

namespace fs = std::filesystem;
using support::message_of;
using testing::AllOf;
using testing::HasSubstr;

const fs::path golden = fs::path(TRESTLE_SOURCE_DIR) / "tests/golden/weights";

class Weights : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::path(TRESTLE_BINARY_DIR) / "scratch" /
        (std::string("weights_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
};

std::map<std::string, at::Tensor> by_name(const NamedTensors& tensors) {
  return {tensors.begin(), tensors.end()};
}

std::string refusal(const fs::path& path) {
  return message_of<FormatError>([&] { read_weights(path); });
}

TEST_F(Weights, ReadsFilesOfTorchSave) {
  const auto back = by_name(read_weights(golden / "python.pt").tensors);
  ASSERT_EQ(back.size(), 14u);
  const at::Tensor table = torch::arange(12, torch::kFloat) / 8;
  EXPECT_TRUE(torch::equal(back.at("layer.weight"), table.view({3, 4})));
  EXPECT_TRUE(torch::equal(back.at("layer.transposed"), table.view({3, 4}).t()));
  EXPECT_TRUE(torch::equal(back.at("layer.row"), table.slice(0, 4, 8)));
  EXPECT_TRUE(torch::equal(back.at("layer.steps"), torch::tensor(std::int64_t{-5})));
  EXPECT_TRUE(torch::equal(back.at("parameter"), torch::tensor({2.5F, -1.0F})));
  EXPECT_TRUE(torch::equal(back.at("mask"), torch::tensor({true, false, true})));
  EXPECT_TRUE(torch::equal(back.at("half"), torch::tensor({0.5, -2.0}).to(torch::kHalf)));
  EXPECT_TRUE(torch::equal(back.at("brain"), torch::tensor({1.0, 3.0}).to(torch::kBFloat16)));
  EXPECT_EQ(back.at("double").item<double>(), 1e300);
  EXPECT_EQ(back.at("int").item<std::int32_t>(), -70000);
  EXPECT_EQ(back.at("short").item<std::int16_t>(), -300);
  EXPECT_EQ(back.at("char").item<std::int8_t>(), -3);
  EXPECT_EQ(back.at("byte").item<std::uint8_t>(), 250);
  EXPECT_EQ(back.at("none").sizes(), (std::vector<std::int64_t>{0, 4}));
  EXPECT_TRUE(back.at("layer.row").is_alias_of(back.at("layer.weight")))
      << "one storage, as in Python";
}

TEST_F(Weights, NegatedTensorsHaveTheRightSign) {
  const at::Tensor expected = torch::tensor({-2.0F, 4.0F, -0.5F});
  const auto back = by_name(read_weights(golden / "negated.pt").tensors);
  EXPECT_TRUE(torch::equal(back.at("negated"), expected));
  EXPECT_TRUE(torch::equal(back.at("plain"), expected));
  const at::Tensor into = torch::zeros({3}), other = torch::zeros({3});
  load_weights({{"negated", into}, {"plain", other}}, golden / "negated.pt");
  EXPECT_TRUE(torch::equal(into, expected));
  // The same in memory, both ways, with libtorch's own flag.
  for (const char* name : {"a.pt", "a.safetensors"}) {
    write_weights(folder_ / name, {{"w", at::_neg_view(torch::ones({3}))}});
    EXPECT_TRUE(torch::equal(read_weights(folder_ / name).tensors[0].second, -torch::ones({3})));
    const at::Tensor negative = at::_neg_view(torch::zeros({3}));
    load_weights({{"w", negative}}, folder_ / name);
    EXPECT_TRUE(torch::equal(negative, -torch::ones({3}))) << name;
  }
}

// As with copy_(): otherwise the gradient would be that of other weights.
TEST_F(Weights, ABackwardThroughTheOldWeightsIsAnError) {
  for (const char* name : {"a.pt", "a.safetensors"}) {
    write_weights(folder_ / name, {{"w", torch::ones({3})}});
    const at::Tensor weight = torch::rand({3}, torch::requires_grad());
    const at::Tensor input = torch::rand({3}, torch::requires_grad());
    const at::Tensor sum = (weight * input).sum();
    load_weights({{"w", weight}}, folder_ / name);
    EXPECT_THROW(sum.backward(), c10::Error) << name;
  }
}

TEST_F(Weights, ListsTensorsWithoutReadingThem) {
  const auto list = list_weights(golden / "checkpoint.pt");
  ASSERT_EQ(list.size(), 7u) << "the weights, not the optimizer's state";
  EXPECT_EQ(list[0].name, "fc.weight");
  EXPECT_EQ(list[0].shape, (std::vector<std::int64_t>{3, 2}));
  EXPECT_EQ(list[0].type, at::kFloat);
  EXPECT_EQ(list[6].name, "norm.num_batches_tracked");
  EXPECT_EQ(list[6].type, at::kLong);
}

TEST_F(Weights, ErrorsNameTheUnsupportedKindOfFile) {
  EXPECT_THAT(refusal(golden / "two.pt"), HasSubstr("several dicts of tensors: 'model', 'ema'"));
  EXPECT_THAT(refusal(golden / "no_tensors.pt"), HasSubstr("its keys are: 'epoch', 'state_dict'"));
  EXPECT_THAT(refusal(golden / "one_tensor.pt"), HasSubstr("has no dict of tensors"));
  EXPECT_THAT(refusal(golden / "whole_model.pt"),
              AllOf(HasSubstr("contains 'torch.nn.modules."), HasSubstr("model.state_dict()")));
  EXPECT_THAT(refusal(golden / "old_format.pt"),
              AllOf(HasSubstr("before PyTorch 1.6"), HasSubstr("torch.save(torch.load(")));
  EXPECT_THAT(refusal(golden / "script.pt"), HasSubstr("TorchScript"));
  EXPECT_THAT(refusal(golden / "protocol4.pt"), HasSubstr("protocol 4"));
  EXPECT_THAT(refusal(golden / "command.pt"), HasSubstr("contains 'posix.system'"));
  EXPECT_THAT(refusal(golden / "compressed.pt"), HasSubstr("compressed"));
  EXPECT_THAT(refusal(golden / "big_endian.pt"), HasSubstr("big-endian"));
  EXPECT_THAT(refusal(golden / "short_storage.pt"),
              HasSubstr("storage '0' has 12 elements, but its entry has only 47 bytes"));
  EXPECT_FALSE(fs::exists("this_must_not_be_there"));

  const std::string tar(257, 'x');
  write_file(folder_ / "a.tar", tar + "ustar" + tar);
  EXPECT_THAT(refusal(folder_ / "a.tar"), HasSubstr("before PyTorch 1.6"));
  write_file(folder_ / "a.txt", "these are no weights");
  EXPECT_THAT(refusal(folder_ / "a.txt"), HasSubstr("not a safetensors file"));
  write_file(folder_ / "empty.pt", "");
  EXPECT_THAT(refusal(folder_ / "empty.pt"), HasSubstr("the file of weights is empty"));
  EXPECT_THROW(read_weights(folder_ / "none.pt"), FileError);
  EXPECT_THROW(read_weights(folder_), FileError);
}

TEST_F(Weights, RejectsFilesCutShort) {
  const std::string whole = read_file(golden / "python.pt");
  for (std::size_t length = 0; length < whole.size(); length += 37) {
    std::ofstream(folder_ / "cut.pt", std::ios::binary | std::ios::trunc)
        << whole.substr(0, length);
    EXPECT_NE(refusal(folder_ / "cut.pt"), "nothing was thrown") << length;
  }
}

// A changed byte in the middle of a storage: the archive's checksum detects it.
TEST_F(Weights, RejectsABrokenStorage) {
  std::string bytes = read_file(golden / "python.pt");
  const auto at = bytes.find("\x00\x00\x80\x3f\x00\x00\x90\x3f", 0, 8);  // 1.0, 1.125
  ASSERT_NE(at, std::string::npos);
  bytes[at] = 'x';
  write_file(folder_ / "broken.pt", bytes);
  EXPECT_THAT(refusal(folder_ / "broken.pt"), HasSubstr("is broken"));
}

TEST_F(Weights, AnyBytesEitherReadOrThrowAnError) {
  const std::vector<std::string> seeds = {read_file(golden / "python.pt"),
                                          read_file(golden / "checkpoint.pt"),
                                          read_file(golden / "compressed.pt")};
  const fs::path path = folder_ / "fuzz.pt";
  const auto try_bytes = [&](std::string_view bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    read_weights(path);
  };
  try_bytes(seeds[0]);
  // Mutations start from complete files, one of which is an error.
  const auto result = fuzz::run(seeds, try_bytes, {.iterations = 3000, .longest = 8192});
  EXPECT_GT(result.accepted, 10);
  EXPECT_GT(result.refused, 1000);
}

// DeepSpeed's and DCP's folders, with what Python says they hold.
TEST_F(Weights, ReadsFoldersOfOtherPrograms) {
  const fs::path folders = golden.parent_path();
  std::vector<fs::path> all = {folders / "dcp"};
  for (const char* const kind : {"deepspeed", "deepspeed_frozen", "deepspeed_groups"})
    for (const auto& entry : fs::directory_iterator(folders / kind))
      if (entry.is_directory()) all.push_back(entry.path());
  ASSERT_EQ(all.size(), 1u + 8 + 6 + 4);
  for (const fs::path& folder : all) {
    const auto expected = by_name(read_weights(folder / "reference.safetensors").tensors);
    const auto weights = by_name(read_weights(folder).tensors);
    const auto state = by_name(CheckpointFolder(folder).read("optimizer"));
    std::size_t compared = 0;
    for (const auto& [name, tensor] : expected) {
      if (name == "losses") continue;
      const at::Tensor& found = weights.contains(name) ? weights.at(name) : state.at(name);
      // Frozen parameters of bf16 are saved in bf16.
      EXPECT_TRUE(torch::equal(found.to(tensor.scalar_type()), tensor)) << folder << " " << name;
      compared += 1;
    }
    EXPECT_GE(compared, 6u);
    EXPECT_EQ(list_weights(folder).size(), weights.size());
    const std::string step = weights.contains("0.weight") ? "0.weight.step" : "fc.weight.step";
    // DeepSpeed's optimizer of 16 bits at stage 0 begins with a step of its own.
    const bool has_own_step = folder.filename() == "bf16_zero0" || folder.filename() == "dcp";
    EXPECT_EQ(state.at(step).item<std::int64_t>(), has_own_step ? 4 : 3) << folder;
  }
  // Into a model of another floating type, a box of a tensor only.
  const at::Tensor box = torch::zeros({2, 3}, torch::kDouble);
  CheckpointFolder(folders / "dcp").read("weights", {{"fc.weight", box, {2, 0}}});
  EXPECT_TRUE(torch::equal(box, (torch::arange(6, torch::kDouble).view({2, 3}) + 6) / 8));
}

TEST_F(Weights, RoundTripsFoldersOfHuggingFace) {
  NamedTensors tensors;
  for (int i = 0; i < 5; ++i)
    tensors.emplace_back(text("layer", i, ".weight"), torch::randn({3, i + 1}));
  write_weights_folder(folder_ / "many", tensors, 48, {{"epoch", "7"}});
  write_weights_folder(folder_ / "one", tensors, 1 << 20);
  EXPECT_TRUE(fs::exists(folder_ / "many/model-00004-of-00004.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "many/model.safetensors"));
  EXPECT_TRUE(fs::exists(folder_ / "one/model.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "one" / "model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(folder_ / "many.tmp"));
  for (const char* const place : {"many", "one", "many/model.safetensors.index.json"}) {
    const auto back = by_name(read_weights(folder_ / place).tensors);
    ASSERT_EQ(back.size(), 5u);
    for (const auto& [name, tensor] : tensors) EXPECT_TRUE(torch::equal(back.at(name), tensor));
  }
  EXPECT_THAT(message_of<UsageError>([&] { write_weights_folder(folder_ / "one", tensors, 48); }),
              HasSubstr("exists already"));
  EXPECT_THROW(
      write_weights_folder(folder_ / "two", {{"a", torch::ones(1)}, {"a", torch::ones(1)}}, 48),
      UsageError);
  EXPECT_FALSE(fs::exists(folder_ / "two"));
}

// Damage in the last tensor: the first ones have been read by then, and are not written.
TEST_F(Weights, ADamagedFileChangesNoTensor) {
  const fs::path folders = golden.parent_path();
  const auto flip = [](const fs::path& path, std::size_t from_end) {
    std::string bytes = read_file(path);
    bytes[bytes.size() - from_end] = static_cast<char>(bytes[bytes.size() - from_end] ^ 0x40);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  };
  const auto expect_nothing_changed = [&](const fs::path& path, const std::string& file) {
    NamedTensors model;
    for (const StoredTensor& tensor : list_weights(path))
      model.emplace_back(tensor.name, torch::full(tensor.shape, 7, torch::kFloat));
    EXPECT_THAT(message_of([&] { load_weights(model, path, {.strict = false}); }), HasSubstr(file));
    for (const auto& [name, tensor] : model)
      EXPECT_TRUE(torch::equal(tensor, torch::full_like(tensor, 7))) << path << " " << name;
  };
  const NamedTensors tensors = {{"a", torch::randn({64})}, {"b", torch::randn({64})}};
  write_checkpoint(folder_ / "own",
                   {{"weights", {{"a", tensors[0].second}}}, {"other", {{"b", tensors[1].second}}}},
                   "{}");
  flip(folder_ / "own/weights.safetensors", 9);
  expect_nothing_changed(folder_ / "own", "'a' differs from the saved one");
  write_weights(folder_ / "a.pt", tensors);
  std::string bytes = read_file(folder_ / "a.pt");
  const std::string data(static_cast<const char*>(tensors[1].second.const_data_ptr()), 64);
  bytes[bytes.find(data) + 3] ^= 0x40;
  std::ofstream(folder_ / "a.pt", std::ios::binary | std::ios::trunc) << bytes;
  expect_nothing_changed(folder_ / "a.pt", "a.pt");
  for (const char* const name : {"fp32_zero1", "fp32_zero3", "bf16_zero0"}) {
    fs::copy(folders / "deepspeed" / name, folder_ / name, fs::copy_options::recursive);
    const bool is_whole = name == std::string("bf16_zero0");
    const fs::path file =
        folder_ / name / "global_step3" /
        (is_whole ? "mp_rank_00_model_states.pt" : "zero_pp_rank_1_mp_rank_00_optim_states.pt");
    const auto weights = by_name(read_weights(folder_ / name).tensors);
    const at::Tensor last = weights.at("3.bias");
    std::string content = read_file(file);
    const std::string part(static_cast<const char*>(last.const_data_ptr()) + 8, 4);
    const std::size_t place = content.rfind(part);
    ASSERT_NE(place, std::string::npos) << name;
    content[place] = static_cast<char>(content[place] ^ 1);
    std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
    expect_nothing_changed(folder_ / name, file.filename().string());
  }
}

TEST_F(Weights, RoundTrips) {
  const NamedTensors tensors = {{"float", torch::arange(6, torch::kFloat).view({2, 3}).t()},
                                {"long", torch::tensor(std::int64_t{1} << 40)},
                                {"bf16", torch::randn({2, 2}).to(torch::kBFloat16)},
                                {"bool", torch::tensor({true, false, true})},
                                {"empty", torch::empty({0, 4})}};
  for (const char* name : {"a.pt", "a.pth", "a.safetensors"}) {
    write_weights(folder_ / name, tensors);
    const NamedTensors back = read_weights(folder_ / name).tensors;
    ASSERT_EQ(back.size(), tensors.size());
    for (std::size_t i = 0; i < back.size(); ++i) {
      const at::Tensor read = by_name(back).at(tensors[i].first);
      EXPECT_EQ(read.scalar_type(), tensors[i].second.scalar_type()) << tensors[i].first;
      EXPECT_TRUE(torch::equal(read, tensors[i].second)) << tensors[i].first;
    }
  }
  EXPECT_THAT(message_of<UsageError>([&] { write_weights(folder_ / "a.bin", tensors); }),
              HasSubstr(".safetensors"));
  EXPECT_THROW(write_weights(folder_ / "b.pt", {{"a", torch::zeros(1)}, {"a", torch::zeros(1)}}),
               UsageError);
  EXPECT_THROW(write_weights(folder_ / "b.pt", {{"a", torch::zeros(1, torch::kComplexFloat)}}),
               UsageError);
  EXPECT_THROW(write_weights(folder_ / "b.safetensors", {{"a\xff", torch::zeros(1)}}), UsageError);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 3);
}

TEST_F(Weights, LoadsIntoExistingTensors) {
  for (const char* name : {"a.pt", "a.safetensors"}) {
    write_weights(folder_ / name, {{"w", torch::arange(6, torch::kFloat).view({2, 3})},
                                   {"last", torch::full({4}, 7.0, torch::kDouble)},
                                   {"image", torch::randn({1, 2, 3, 4})},
                                   {"half", torch::ones({3}, torch::kHalf)}});
    at::Tensor weight = torch::zeros({2, 3}, torch::requires_grad());
    const void* place = weight.const_data_ptr();
    const at::Tensor image = torch::zeros({1, 2, 3, 4}).to(at::MemoryFormat::ChannelsLast);
    const at::Tensor half = torch::zeros({3}), last = torch::zeros({4}, torch::kDouble);
    const LoadReport report = load_weights(
        {{"w", weight}, {"image", image}, {"half", half}, {"last", last}}, folder_ / name);
    EXPECT_TRUE(report.whole());
    EXPECT_EQ(report.loaded, 4u);
    EXPECT_EQ(report.converted, 1u);
    EXPECT_EQ(weight.const_data_ptr(), place);
    EXPECT_TRUE(weight.requires_grad());
    EXPECT_TRUE(torch::equal(weight.detach(), torch::arange(6, torch::kFloat).view({2, 3})));
    EXPECT_TRUE(image.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(torch::equal(image, by_name(read_weights(folder_ / name).tensors).at("image")));
    EXPECT_TRUE(torch::equal(half, torch::ones({3})));
    EXPECT_TRUE(torch::equal(last, torch::full({4}, 7.0, torch::kDouble)));
    EXPECT_EQ(describe(report), "4 tensors, under its own names, 1 of them of another type");
  }
}

// The length before a header may look like the first byte of a pickle.
TEST_F(Weights, RecognizesTheKindOfFile) {
  write_weights(folder_ / "a.safetensors", {{"name", torch::ones(1)}});
  const std::string written = read_file(folder_ / "a.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, written.data(), sizeof length);
  for (std::uint64_t longer = length; longer < length + 256; ++longer) {
    std::string bytes = written;
    bytes.insert(sizeof length + length, longer - length, ' ');
    std::memcpy(bytes.data(), &longer, sizeof longer);
    write_file(folder_ / "a.safetensors", bytes);
    EXPECT_EQ(list_weights(folder_ / "a.safetensors")[0].name, "name") << longer;
  }
}

// Large enough to be read in several ranges by several threads.
TEST_F(Weights, LargeTensorsAreReadCompletely) {
  const at::Tensor large = torch::randint(0, 255, {30'000'001}, torch::kByte);
  write_weights(folder_ / "a.safetensors", {{"a", large}, {"b", large.slice(0, 5, 9'000'000)}});
  const auto back = by_name(read_weights(folder_ / "a.safetensors").tensors);
  EXPECT_TRUE(torch::equal(back.at("a"), large));
  EXPECT_TRUE(torch::equal(back.at("b"), large.slice(0, 5, 9'000'000)));
}

TEST_F(Weights, AnotherModelIsAnErrorWithEveryDifferenceAndNothingChanges) {
  const at::Tensor w = torch::zeros({2, 2}), v = torch::zeros({3}), n = torch::zeros({});
  const at::Tensor fits = torch::zeros({1}), steps = torch::zeros({}, torch::kLong);
  const NamedTensors model = {{"w", w}, {"v", v}, {"n", n}, {"fits", fits}, {"steps", steps}};
  for (const char* name : {"a.pt", "a.safetensors"}) {
    write_weights(folder_ / name, {{"w", torch::ones({2, 3})},
                                   {"fits", torch::ones({1})},
                                   {"more", torch::ones({5, 1})},
                                   {"n", torch::ones({})},
                                   {"steps", torch::ones({})}});
    const std::string message =
        message_of<FormatError>([&] { load_weights(model, folder_ / name); });
    EXPECT_THAT(message, AllOf(HasSubstr(name), HasSubstr("2 of its 5 tensors match"),
                               HasSubstr("missing in the file (1): 'v' [3]"),
                               HasSubstr("not in the model (1): 'more' [5, 1]"),
                               HasSubstr("'w' is Float [2, 3], but the model's is Float [2, 2]"),
                               HasSubstr("'steps' is Float [], but the model's is Long []"),
                               HasSubstr("strict = false")));
    for (const auto& [tensor_name, tensor] : model)
      EXPECT_EQ(tensor.sum().item<double>(), 0) << tensor_name;

    const LoadReport report = load_weights(model, folder_ / name, {.strict = false});
    EXPECT_EQ(report.loaded, 2u);
    EXPECT_THAT(report.missing, testing::ElementsAre("'v' [3]"));
    EXPECT_THAT(report.unexpected, testing::ElementsAre("'more' [5, 1]"));
    EXPECT_EQ(report.mismatched.size(), 2u);
    EXPECT_EQ(fits.item<float>(), 1);
    EXPECT_EQ(w.sum().item<float>(), 0);
    fits.zero_();
    n.zero_();
    EXPECT_THAT(message_of<FormatError>([&] {
                  load_weights({{"other", torch::zeros(1)}}, folder_ / name, {.strict = false});
                }),
                HasSubstr("0 of its 1 tensors match"));
  }
}

TEST_F(Weights, DuplicateNamesAfterRenamingAreErrors) {
  write_weights(folder_ / "a.pt", {{"a.w", torch::ones(1)},
                                   {"module.b.w", torch::ones(1)},
                                   {"b.w", torch::ones(1)},
                                   {"module.c.w", torch::ones(1)}});
  EXPECT_THAT(message_of<FormatError>([&] {
                load_weights(
                    {{"b.w", torch::zeros(1)}, {"c.w", torch::zeros(1)}, {"a.w", torch::zeros(1)}},
                    folder_ / "a.pt");
              }),
              HasSubstr("both 'module.b.w' and 'b.w' have the name 'b.w'"));
}

TEST_F(Weights, TheCallerMayRename) {
  write_weights(folder_ / "a.pt", {{"x.w", torch::ones(1)}});
  const at::Tensor w = torch::zeros(1);
  const auto report =
      load_weights({{"y.w", w}}, folder_ / "a.pt",
                   {.rename = [](const std::string& name) { return "y" + name.substr(1); }});
  EXPECT_EQ(w.item<float>(), 1);
  EXPECT_EQ(report.names, "the caller's");
}

TEST_F(Weights, NumBatchesTrackedMayBeMissing) {
  nn::Layers net;
  net.add("norm", torch::nn::BatchNorm1d(2));
  NamedTensors all = net.named_parameters();
  all.emplace_back("norm.running_mean", torch::ones(2));
  all.emplace_back("norm.running_var", torch::ones(2));
  write_weights(folder_ / "a.pt", all);
  EXPECT_TRUE(load_weights(net, folder_ / "a.pt").whole());
  EXPECT_EQ(net.named_buffers()[0].second.sum().item<float>(), 2);
}

// Each table names every parameter and buffer of its model and translates the names back.
TEST(WeightNames, TablesAreComplete) {
  for (const auto& [whose, net] : std::vector<std::pair<std::string, nn::Layers>>{
           {"torchvision", models::resnet18({.width = 2})},
           {"reference", models::resnet18({.width = 2})},
           {"reference", models::resnet18_flat({.width = 2})},
           {"reference", models::unet({.width = 2})},
           {"pytorch_unet", models::unet({.width = 2})},
           {"pytorch_unet", models::unet({.width = 2, .bilinear = true})}}) {
    NamedTensors all = net.named_parameters();
    for (const auto& buffer : net.named_buffers()) all.push_back(buffer);
    std::vector<std::string> ours, theirs;
    for (const auto& [name, tensor] : all) ours.push_back(name);
    for (const auto& [name, tensor] : rename_weights(all, whose)) theirs.push_back(name);
    EXPECT_NE(theirs, ours);
    EXPECT_EQ(names_of(theirs, ours).names, ours) << whose;
  }
  EXPECT_THAT(message_of<UsageError>([] {
                rename_weights({{"in.conv1.weight", torch::zeros(1)}}, "torchvision");
              }),
              HasSubstr("1 of these 1 tensors have no name among torchvision's"));
  EXPECT_THAT(message_of<UsageError>([] { rename_weights({}, "torchvison"); }),
              HasSubstr("did you mean 'torchvision'?"));
}

}  // namespace
}  // namespace trestle::checkpoint
