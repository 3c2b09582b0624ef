#include "trestle/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <csignal>
#include <fstream>

#include "trestle/base/error.h"
#include "trestle/base/files.h"

namespace trestle::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Safetensors : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(TRESTLE_BINARY_DIR) / "scratch" /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
};

NamedTensors some() {
  return {{"float", torch::arange(6, torch::kFloat).view({2, 3}).t()},
          {"long", torch::tensor(std::int64_t{1} << 40)},
          {"half", torch::randn({3}).to(torch::kHalf)},
          {"bf16", torch::randn({2, 2}).to(torch::kBFloat16)},
          {"bool", torch::tensor({true, false, true})},
          {"empty", torch::empty({0, 4})}};
}

TEST_F(Safetensors, RoundTrips) {
  const NamedTensors tensors = some();
  write_tensors(folder_ / "a.safetensors", tensors, {{"epoch", "7"}});
  const TensorFile file = read_tensors(folder_ / "a.safetensors");
  EXPECT_EQ(file.metadata.at("epoch"), "7");
  ASSERT_EQ(file.tensors.size(), tensors.size());
  std::map<std::string, at::Tensor> back(file.tensors.begin(), file.tensors.end());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(back.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(torch::equal(back.at(name), tensor)) << name;
  }
}

TEST_F(Safetensors, ReadsPythonsFiles) {
  const TensorFile file =
      read_tensors(fs::path(TRESTLE_SOURCE_DIR) / "tests/golden/safetensors/python.safetensors");
  std::map<std::string, at::Tensor> back(file.tensors.begin(), file.tensors.end());
  EXPECT_EQ(file.metadata.at("written_by"), "python safetensors");
  EXPECT_TRUE(
      torch::equal(back.at("layer.weight"), torch::arange(12, torch::kFloat).view({3, 4}) / 8));
  EXPECT_TRUE(torch::equal(back.at("layer.steps"), torch::tensor(std::int64_t{-5})));
  EXPECT_TRUE(torch::equal(back.at("mask"), torch::tensor({true, false, true})));
  EXPECT_TRUE(torch::equal(back.at("half"), torch::tensor({0.5, -2.0}).to(torch::kHalf)));
  EXPECT_TRUE(torch::equal(back.at("brain"), torch::tensor({1.0, 3.0}).to(torch::kBFloat16)));
}

TEST_F(Safetensors, RejectsTensorsThatCannotBeSaved) {
  const auto path = folder_ / "a.safetensors";
  EXPECT_THROW(write_tensors(path, {{"a", torch::zeros(1)}, {"a", torch::zeros(1)}}), UsageError);
  EXPECT_THROW(write_tensors(path, {{"a", at::Tensor()}}), UsageError);
  EXPECT_THROW(write_tensors(path, {{"a", torch::zeros(1, torch::kComplexFloat)}}), UsageError);
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(Safetensors, RejectsIncompleteFiles) {
  const auto path = folder_ / "a.safetensors";
  EXPECT_THROW(read_tensors(path), FileError);
  EXPECT_THROW(read_tensors(folder_), FileError);
  write_tensors(path, some());
  const std::string whole = read_file(path);
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{7}, std::size_t{8}, std::size_t{100}, whole.size() - 1}) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << whole.substr(0, length);
    EXPECT_THROW(read_tensors(path), FormatError) << length;
  }
  std::ofstream(path, std::ios::binary | std::ios::trunc) << whole << "x";
  EXPECT_THROW(read_tensors(path), FormatError);
}

TEST_F(Safetensors, AFullDiskLeavesTheOldFile) {
  const auto path = folder_ / "a.safetensors";
  write_tensors(path, {{"a", torch::ones(4)}});
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(write_tensors(path, {{"a", torch::zeros(100000)}}), FileError);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(torch::equal(read_tensors(path).tensors[0].second, torch::ones(4)));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1)
      << "no incomplete file";
}

TEST_F(Safetensors, CopiesByNameAndListsEveryDifference) {
  at::Tensor weight = torch::zeros({2, 2}, torch::requires_grad());
  const void* storage = weight.const_data_ptr();
  copy_into({{"w", torch::ones({2, 2})}}, {{"w", weight}}, "x");
  EXPECT_TRUE(torch::equal(weight.detach(), torch::ones({2, 2})));
  EXPECT_EQ(weight.const_data_ptr(), storage);
  try {
    copy_into({{"w", torch::zeros(3)}, {"more", torch::zeros(1)}}, {{"w", weight}, {"v", weight}},
              "best.safetensors");
    FAIL() << "nothing was thrown";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("best.safetensors"));
    EXPECT_THAT(error.what(), HasSubstr("'v' is missing"));
    EXPECT_THAT(error.what(), HasSubstr("'w' is Float [3], but the model's is Float [2, 2]"));
    EXPECT_THAT(error.what(), HasSubstr("'more' is not in the model"));
  }
  EXPECT_TRUE(torch::equal(weight.detach(), torch::ones({2, 2}))) << "nothing was copied";
}

}  // namespace
}  // namespace trestle::checkpoint
