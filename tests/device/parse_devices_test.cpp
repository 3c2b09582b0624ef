#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support.h"
#include "trestle/base/error.h"
#include "trestle/device/virtual_device.h"

namespace trestle {
namespace {

using namespace literals;
using ::testing::HasSubstr;
using testing::virtual_device;

std::vector<std::string> names(std::string_view text) {
  std::vector<std::string> result;
  for (const Device& device : parse_devices(text)) result.push_back(to_string(device));
  return result;
}

using Names = std::vector<std::string>;

TEST(ParseDevicesTest, ReadsEveryForm) {
  EXPECT_EQ(names("cpu"), Names{"cpu"});
  EXPECT_EQ(names("cpu,cpu"), (Names{"cpu", "cpu"}));
  EXPECT_EQ(names("cpu:0"), Names{"cpu"});
  EXPECT_EQ(names("virtual"), Names{"virtual:0"});
  EXPECT_EQ(names("virtual:0"), Names{"virtual:0"});
  EXPECT_EQ(names("virtual:1"), Names{"virtual:0"});
  EXPECT_EQ(names("virtual:3"), (Names{"virtual:0", "virtual:1", "virtual:2"}));
  EXPECT_EQ(names(" virtual:1 , virtual:0 "), (Names{"virtual:1", "virtual:0"}));
  EXPECT_EQ(names("virtual:1,virtual:1"), (Names{"virtual:1", "virtual:1"}));
}

TEST(ParseDevicesTest, BudgetsArriveInTheDevices) {
  const auto two = parse_devices("virtual:2x512MiB");
  ASSERT_EQ(two.size(), 2U);
  for (const Device& device : two) {
    EXPECT_EQ(device.budget, 512_MiB);
    EXPECT_EQ(budget(device.torch), 512_MiB);
    EXPECT_EQ(memory_usage(device.torch).budget, 512_MiB);
  }
  const auto uneven = parse_devices("virtual:1x1GiB,virtual:2x512MiB");
  ASSERT_EQ(uneven.size(), 3U);
  EXPECT_EQ(uneven[0].budget, 1_GiB);
  EXPECT_EQ(uneven[1].budget, 512_MiB);
  EXPECT_EQ(device_name(uneven[2].torch), "virtual:2");
  EXPECT_EQ(parse_devices("virtual:0,virtual:1")[0].budget, 1_GiB)
      << "devices by number keep their current budgets";
  EXPECT_EQ(parse_devices("virtual:3")[0].budget, 0);
  EXPECT_EQ(budget(virtual_device(0)), 0);
}

TEST(ParseDevicesTest, NamesEqualLibtorchs) {
  EXPECT_EQ(at::Device("virtual:1"), virtual_device(1));
  EXPECT_EQ(device_name(virtual_device(1)), "virtual:1");
  EXPECT_EQ(device_name(at::kCPU), "cpu");
  EXPECT_EQ(device_name(at::Device(at::kCUDA, 2)), "cuda:2");
  EXPECT_EQ(cpu_device(), Device{});
}

struct BadText {
  const char* text;
  const char* message;
};
void PrintTo(const BadText& value, std::ostream* out) { *out << '"' << value.text << '"'; }

class BadDevicesTest : public ::testing::TestWithParam<BadText> {};

TEST_P(BadDevicesTest, AreRejectedWithAReason) {
  try {
    parse_devices(GetParam().text);
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
    EXPECT_FALSE(error.where().hint.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadDevicesTest,
    ::testing::Values(
        BadText{"", "no device named"}, BadText{"virtual:0,,virtual:1", "no device named"},
        BadText{"virtul:2", "did you mean 'virtual'?"}, BadText{"tpu:0", "not a kind of device"},
        BadText{"virtual:two", "has no device number"},
        BadText{"virtual:-1", "has no device number"}, BadText{"virtual:", "has no device number"},
        BadText{"virtual:0x1GiB", "requests no device"},
        BadText{"virtual:65", "A process can have 64"},
        BadText{"virtual:0,virtual:63", "There are virtual:0 to virtual:"},
        BadText{"virtual:2x1GiB,virtual:1", "could count devices or name one"},
        BadText{"cpu,virtual:1", "mixes cpu and virtual"},
        BadText{"cpu:1", "there is one CPU device"}, BadText{"cuda:99", "does not exist"},
        BadText{"cuda:0,cuda:99", "does not exist"},
        BadText{"cuda:all", "this process sees no CUDA device"},
        BadText{"cuda:all,cuda:0", "cannot be combined with other devices"},
        BadText{"virtual:all", "has no device number"},
        BadText{"virtual:99999999999999", "has no device number"}));

TEST(ParseDevicesTest, ABadBudgetIsRefused) {
  EXPECT_THROW(parse_devices("virtual:2x12apples"), UsageError);
}

TEST(VirtualDevicesTest, TheNumberIsFixedAtTheFirstCall) {
  virtual_device(0);
  EXPECT_TRUE(virtual_devices_installed());
  EXPECT_GE(virtual_device_count(), 16);
  install_virtual_devices({.count = 2});
  EXPECT_EQ(virtual_devices(virtual_device_count()).size(),
            static_cast<std::size_t>(virtual_device_count()));
  try {
    install_virtual_devices({.count = virtual_device_count() + 1});
    FAIL() << "accepted";
  } catch (const StateError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the first call fixed their number"));
    EXPECT_THAT(error.where().hint, HasSubstr("first"));
  }
}

TEST(VirtualDevicesTest, ImpossibleNumbersAreRefused) {
  EXPECT_THROW(install_virtual_devices({.count = 0}), UsageError);
  EXPECT_THROW(install_virtual_devices({.count = 65}), UsageError);
  EXPECT_THROW(install_virtual_devices({.count = 1, .threads_per_device = -1}), UsageError);
  EXPECT_THROW(virtual_devices(0), UsageError);
  EXPECT_THROW(cuda_devices(0), UsageError);
}

TEST(VirtualDevicesTest, CudaIsRejectedBesideThem) {
  virtual_device(0);
  EXPECT_THROW(cuda_devices(1), StateError);
}

// A plan for another machine: its devices need not exist on this one.
TEST(PlannedDevicesTest, NeedNotExist) {
  const int installed = virtual_device_count();
  const auto planned = [](std::string_view text) {
    std::vector<std::string> result;
    for (const Device& device : planned_devices(text)) result.push_back(to_string(device));
    return result;
  };
  EXPECT_EQ(planned("cuda:0,cuda:7"), (Names{"cuda:0", "cuda:7"}));
  EXPECT_EQ(planned("cpu,cpu"), (Names{"cpu", "cpu"}));
  EXPECT_EQ(planned("virtual:1,virtual:1"), (Names{"virtual:1", "virtual:1"}));
  const auto uneven = planned_devices("virtual:1x1GiB,virtual:2x16384GiB");
  ASSERT_EQ(uneven.size(), 3U);
  EXPECT_EQ(uneven[0].budget, 1_GiB);
  EXPECT_EQ(uneven[2].budget, 16384_GiB);
  EXPECT_EQ(uneven[2].torch.index(), 2);
  EXPECT_EQ(virtual_device_count(), installed) << "nothing is installed";
  EXPECT_THROW(planned_devices("cuda:all"), UsageError);
  EXPECT_THROW(planned_devices("virtual:0,virtual:64"), UsageError);
  EXPECT_THROW(planned_devices("gpu:0"), UsageError);
}

}  // namespace
}  // namespace trestle
