// Views, in-place operators, storages and output arguments: tensors that alias on the CPU must
// alias on a virtual device too.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <gtest/gtest.h>

#include "support.h"

namespace trestle {
namespace {

using testing::on_virtual;
using testing::same_bits;
using testing::torch_error;
using testing::virtual_device;

Bytes held(int index) { return memory_usage(virtual_device(index)).current; }

TEST(AliasingTest, InPlaceThroughAViewChangesTheBase) {
  const auto base = torch::zeros({4, 4}, on_virtual(0));
  base.t()[1].add_(3);
  EXPECT_EQ(base.cpu()[2][1].item<float>(), 3);
  EXPECT_EQ(base.sum().item<float>(), 12);
}

TEST(AliasingTest, AsStridedSharesMemory) {
  const auto base = torch::arange(12, on_virtual(0).dtype(torch::kFloat));
  const auto view = base.as_strided({2, 3}, {6, 2}, 1);
  view.mul_(10);
  const auto expected = torch::arange(12, torch::kFloat);
  expected.as_strided({2, 3}, {6, 2}, 1).mul_(10);
  EXPECT_TRUE(same_bits(base, expected));
  EXPECT_TRUE(view.is_alias_of(base));
}

TEST(AliasingTest, ViewAsAnotherTypeSharesMemory) {
  const auto base = torch::zeros({4}, on_virtual(0));
  base.view(torch::kInt).fill_(0x3f800000);
  EXPECT_EQ(base.sum().item<float>(), 4);
}

TEST(AliasingTest, ChunksShareMemory) {
  const auto base = torch::zeros({6, 2}, on_virtual(0));
  for (const auto& piece : base.chunk(3)) piece.add_(1);
  for (const auto& piece : base.unbind(1)) piece.add_(1);
  for (const auto& piece : base.split(2)) piece.add_(1);
  EXPECT_TRUE(base.eq(3).all().item<bool>());
}

TEST(AliasingTest, ResizeTakesMemoryFromTheTensorsOwnDevice) {
  const auto tensor = torch::ones({4}, on_virtual(1));
  const Bytes before_0 = held(0), before_1 = held(1);
  tensor.resize_({1000});
  EXPECT_EQ(held(1) - before_1, 4000 - 16);
  EXPECT_EQ(held(0), before_0);
  EXPECT_EQ(tensor[3].item<float>(), 1);
  EXPECT_EQ(tensor.storage().device(), virtual_device(1));
}

TEST(AliasingTest, OutputArgumentsAreResized) {
  auto out = torch::empty({0}, on_virtual(0));
  const auto ones = torch::ones({5}, on_virtual(0));
  torch::add_out(out, ones, ones);
  EXPECT_EQ(out.size(0), 5);
  EXPECT_EQ(out.sum().item<float>(), 10);
  auto joined = torch::empty({0}, on_virtual(1));
  torch::cat_out(joined, {torch::ones({3}, on_virtual(1)), torch::ones({4}, on_virtual(1))});
  EXPECT_EQ(joined.numel(), 7);
  EXPECT_EQ(joined.storage().device(), virtual_device(1));
}

TEST(AliasingTest, SetSharesAStorage) {
  const auto source = torch::ones({6}, on_virtual(0));
  const auto whole = torch::empty({0}, on_virtual(0)).set_(source);
  whole.add_(1);
  EXPECT_EQ(source.sum().item<float>(), 12);
  const auto part = torch::empty({0}, on_virtual(0));
  part.set_(source.storage(), 2, {2}, {1});
  part.zero_();
  EXPECT_EQ(source.sum().item<float>(), 8);
  const auto from_storage = torch::empty({0}, on_virtual(0)).set_(source.storage());
  EXPECT_EQ(from_storage.numel(), 6);
  EXPECT_TRUE(from_storage.is_alias_of(source));
}

TEST(AliasingTest, SetToNothingFreesTheMemory) {
  const auto tensor = torch::ones({6}, on_virtual(0));
  const Bytes before = held(0);
  tensor.set_();
  EXPECT_EQ(tensor.numel(), 0);
  EXPECT_EQ(held(0), before - 24);
}

TEST(AliasingTest, AStorageCanBeFreedAndRefilled) {
  const auto tensor = torch::ones({1000}, on_virtual(0));
  const Bytes before = held(0);
  const auto& hooks = at::detail::getPrivateUse1Hooks();
  hooks.resizePrivateUse1Bytes(tensor.storage(), 0);
  EXPECT_EQ(held(0), before - 4000);
  hooks.resizePrivateUse1Bytes(tensor.storage(), 4000);
  tensor.fill_(2);
  EXPECT_EQ(held(0), before);
  EXPECT_EQ(tensor.sum().item<float>(), 2000);
}

TEST(AliasingTest, SetDataReplacesAParameter) {
  auto parameter = torch::ones({6}, on_virtual(0).requires_grad(true));
  parameter.set_data(torch::zeros({3}, on_virtual(0)));
  EXPECT_EQ(parameter.numel(), 3);
}

TEST(AliasingTest, VersionsAreCountedAndChecked) {
  const auto tensor = torch::zeros({3}, on_virtual(0));
  const auto before = tensor._version();
  tensor.detach().add_(1);
  tensor.view({3, 1}).add_(1);
  EXPECT_EQ(tensor._version(), before + 2);

  const auto leaf = torch::ones({3}, on_virtual(0).requires_grad(true));
  const auto doubled = leaf * 2;
  const auto squared = doubled * doubled;
  doubled.add_(1);
  EXPECT_NE(torch_error([&] { squared.sum().backward(); }).find("modified by an inplace"),
            std::string::npos);
}

TEST(AliasingTest, MemoryFormatsAreKept) {
  const auto input =
      torch::randn({2, 3, 4, 4}, on_virtual(0)).contiguous(torch::MemoryFormat::ChannelsLast);
  const auto output = torch::conv2d(input, torch::ones({5, 3, 3, 3}, on_virtual(0)));
  EXPECT_TRUE(output.is_contiguous(torch::MemoryFormat::ChannelsLast));
}

TEST(AliasingTest, CopiesCrossDevicesTypesAndStrides) {
  const auto source = torch::randn({4, 5}, on_virtual(0));
  EXPECT_EQ(source.to(virtual_device(1)).device(), virtual_device(1));
  EXPECT_TRUE(same_bits(source.to(virtual_device(1)), source));
  const auto target = torch::zeros({5, 4}, on_virtual(1).dtype(torch::kDouble));
  target.copy_(source.t());
  EXPECT_TRUE(same_bits(target, source.cpu().t().to(torch::kDouble)));
  EXPECT_TRUE(source.to(virtual_device(0)).is_same(source));
}

TEST(AliasingTest, GradientsFollowCopiesBack) {
  const auto leaf = torch::ones({5}, on_virtual(0).requires_grad(true));
  (leaf.to(virtual_device(1)) * 3).to(at::kCPU).sum().backward();
  EXPECT_EQ(leaf.grad().device(), virtual_device(0));
  EXPECT_EQ(leaf.grad().sum().item<float>(), 15);
}

TEST(AliasingTest, ConjugatesStayLazy) {
  const auto value = torch::randn({3, 4}, on_virtual(0).dtype(torch::kComplexFloat));
  const auto conjugate = value.conj().t();
  EXPECT_TRUE(same_bits(conjugate * 2, value.cpu().conj().t() * 2));
  EXPECT_TRUE(same_bits(conjugate.resolve_conj(), value.cpu().conj().t().resolve_conj()));
}

TEST(AliasingTest, TensorsOutliveEachOther) {
  at::Tensor view;
  const Bytes before = held(2);
  {
    const auto base = torch::arange(8, on_virtual(2).dtype(torch::kFloat));
    view = base.slice(0, 2, 4);
  }
  EXPECT_EQ(held(2), before + 32);
  EXPECT_EQ(view.sum().item<float>(), 5);
  view = at::Tensor();
  EXPECT_EQ(held(2), before);
}

TEST(AliasingTest, InferenceModeWorks) {
  const c10::InferenceMode guard;  // run alone, this test installs the devices inside it too
  const auto tensor = torch::ones({3}, on_virtual(0)) * 2;
  tensor.add_(1);
  EXPECT_TRUE(tensor.is_inference());
  EXPECT_EQ(tensor.view({3, 1}).sum().item<float>(), 9);
  EXPECT_EQ(torch::dropout(tensor, 0.5, true).device(), virtual_device(0));
}

}  // namespace
}  // namespace trestle
