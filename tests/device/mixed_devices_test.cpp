// Mistakes that fail on several GPUs must fail on virtual devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "support.h"
#include "trestle/device/layer_scope.h"

namespace trestle {
namespace {

namespace F = torch::nn::functional;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::on_virtual;
using testing::torch_error;
using testing::virtual_device;

class MixedDevicesTest : public ::testing::Test {
 protected:
  at::Tensor first = torch::ones({3}, on_virtual(0));
  at::Tensor second = torch::ones({3}, on_virtual(1));
  at::Tensor host = torch::ones({3});
};

TEST_F(MixedDevicesTest, TwoVirtualDevices) {
  EXPECT_THAT(torch_error([&] { first + second; }),
              AllOf(HasSubstr("Expected all tensors to be on the same device"),
                    HasSubstr("virtual:0 and virtual:1"), HasSubstr("aten::add.Tensor")));
}

TEST_F(MixedDevicesTest, AVirtualDeviceAndTheCpu) {
  for (const auto& message :
       {torch_error([&] { first + host; }), torch_error([&] { host + first; }), torch_error([&] {
          torch::cat({first, host});
        }),
        torch_error([&] { host.add_(first); }),
        torch_error([&] { torch::add_out(host, first, first); })}) {
    EXPECT_THAT(message, HasSubstr("virtual:0 and cpu"));
  }
}

TEST_F(MixedDevicesTest, AScalarOnTheCpuMayNotBeWrittenFromADevice) {
  auto scalar = torch::zeros({});
  EXPECT_THAT(torch_error([&] { at::sum_out(scalar, first); }),
              AllOf(HasSubstr("virtual:0"), HasSubstr("cpu")));
}

TEST_F(MixedDevicesTest, ModulesAndLosses) {
  EXPECT_THAT(torch_error([&] { torch::nn::Linear(3, 2)(first); }), HasSubstr("same device"));
  EXPECT_THAT(torch_error([&] {
                torch::nn::Conv2d(3, 2, 3)(torch::ones({1, 3, 5, 5}, on_virtual(0)));
              }),
              HasSubstr("same device"));
  torch::nn::Conv2d moved(3, 2, 3);
  moved->to(virtual_device(1));
  EXPECT_THAT(torch_error([&] { moved(torch::ones({1, 3, 5, 5})); }), HasSubstr("same device"));
  EXPECT_THAT(torch_error([&] {
                torch::nn::Embedding(3, 2)(torch::zeros({1}, on_virtual(0).dtype(torch::kLong)));
              }),
              HasSubstr("same device"));
  EXPECT_THAT(torch_error([&] {
                F::cross_entropy(torch::rand({2, 3}, on_virtual(0)), torch::tensor({0, 1}));
              }),
              HasSubstr("same device"));
}

TEST_F(MixedDevicesTest, IndicesMayLieOnTheCpuButNotOnAnotherDevice) {
  EXPECT_EQ(first.index({torch::tensor({1, 2})}).device(), virtual_device(0));
  EXPECT_EQ(first.index({torch::tensor({1, 2}).to(virtual_device(0))}).device(), virtual_device(0));
  EXPECT_THAT(torch_error([&] { first.index({torch::tensor({0}).to(virtual_device(1))}); }),
              AllOf(HasSubstr("same device"), HasSubstr("virtual:0")));
}

TEST_F(MixedDevicesTest, CpuScalarsMayBeMixedIn) {
  EXPECT_EQ((first * torch::tensor(2.0F)).device(), virtual_device(0));
  EXPECT_EQ((first * 2).sum().item<float>(), 6);
}

TEST_F(MixedDevicesTest, TheLayerIsNamed) {
  const std::string name = "decoder.up1";
  const LayerScope scope(name);
  EXPECT_THAT(torch_error([&] { first + second; }), HasSubstr("in layer 'decoder.up1'"));
}

TEST_F(MixedDevicesTest, ADeviceThatDoesNotExist) {
  EXPECT_THAT(torch_error([&] { torch::ones({3}, at::Device(at::kPrivateUse1, 63)); }),
              HasSubstr("virtual:63 does not exist"));
  EXPECT_THAT(torch_error([&] { at::Device("virtual:x"); }), ::testing::Ne(""));
}

TEST_F(MixedDevicesTest, SparseTensorsAreRefused) {
  EXPECT_THAT(torch_error([&] { torch::eye(3, on_virtual(0)).to_sparse(); }),
              HasSubstr("virtual devices hold dense tensors only"));
}

// Its backward makes a sparse gradient, also inside of libtorch's thread of the device.
TEST_F(MixedDevicesTest, SparseEmbeddingIsRefusedWithTheWayOut) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(10, 3).sparse(true));
  table->to(virtual_device(0));
  const at::Tensor rows = table(torch::tensor({1, 4, 4}).to(virtual_device(0)));
  EXPECT_THAT(torch_error([&] { rows.sum().backward(); }),
              AllOf(HasSubstr("virtual devices hold dense tensors only"),
                    HasSubstr("sparse(false), whose gradient is dense")));
  torch::nn::Embedding dense(torch::nn::EmbeddingOptions(10, 3));
  dense->to(virtual_device(0));
  dense(torch::tensor({1, 4, 4}).to(virtual_device(0))).sum().backward();
  EXPECT_EQ(dense->weight.grad().sum().item<float>(), 9);
}

using HostReadDeathTest = MixedDevicesTest;

TEST_F(HostReadDeathTest, ReadingDeviceMemoryFromTheHostCrashes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::signal(SIGSEGV, SIG_DFL);
        const volatile float value = first.data_ptr<float>()[0];
        std::exit(value == 1 ? 0 : 1);
      },
      ::testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(
      {
        std::signal(SIGSEGV, SIG_DFL);
        (first.accessor<float, 1>())[0] = 2;
        std::exit(0);
      },
      ::testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace trestle
