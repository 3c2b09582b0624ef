#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/checkpoint/rank_threads.h"
#include "tests/support/message_of.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/models/resnet.h"
#include "trestle/models/unet.h"

// Exchanges weights with a real Python: python_peer.py is the other side.
namespace trestle::checkpoint {
namespace {

namespace fs = std::filesystem;

class WithPython : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::path(TRESTLE_BINARY_DIR) / "scratch" / text("python_weights_", getpid());
    fs::create_directories(folder_);
    peer("write");
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  static void peer(const std::string& verb) {
    const std::string command =
        text("'", TRESTLE_PYTHON, "' '", TRESTLE_SOURCE_DIR, "/tests/checkpoint/python_peer.py' ",
             verb, " '", folder_.string(), "'");
    ASSERT_EQ(std::system(command.c_str()), 0)
        << command << "\nIt needs what tools/setup.sh --tests installs.";
  }

  // Loads a net's weights and expects Python's outputs.
  static void expect_same_outputs(nn::Layers net, const std::string& name,
                                  const std::string& names) {
    const LoadReport report = load_weights(net, folder_ / (name + ".pt"));
    EXPECT_TRUE(report.whole()) << describe(report);
    EXPECT_EQ(report.names, names);
    net.eval();
    const at::NoGradGuard no_grad;
    const auto io = read_weights(folder_ / (name + "_io.safetensors")).tensors;
    const std::map<std::string, at::Tensor> tensors(io.begin(), io.end());
    const at::Tensor outputs = net.forward(tensors.at("inputs"));
    EXPECT_TRUE(torch::allclose(outputs, tensors.at("outputs"), 1e-4, 1e-4))
        << name << " differs by " << (outputs - tensors.at("outputs")).abs().max().item<float>();
  }

  static fs::path folder_;
};

fs::path WithPython::folder_;

// Python takes the last of two entries of one name, and libzip the first.
TEST_F(WithPython, RefusesAnArchiveWithAnEntryTwice) {
  EXPECT_THAT(support::message_of<FormatError>([] { read_weights(folder_ / "doubled.pt"); }),
              testing::HasSubstr("has the entry 'doubled/data/0' twice"));
}

TEST_F(WithPython, BothKindsOfFilesRoundTrip) {
  const NamedTensors archive = read_weights(folder_ / "plain.pt").tensors;
  const NamedTensors rows = read_weights(folder_ / "plain.safetensors").tensors;
  ASSERT_EQ(archive.size(), 10u);
  ASSERT_EQ(rows.size(), 10u);
  const std::map<std::string, at::Tensor> same(rows.begin(), rows.end());
  for (const auto& [name, tensor] : archive) {
    EXPECT_TRUE(torch::equal(tensor, same.at(name))) << name;
    EXPECT_EQ(tensor.scalar_type(), same.at(name).scalar_type()) << name;
  }
  EXPECT_TRUE(torch::equal(archive[0].second, torch::arange(6, torch::kFloat).view({2, 3})));
  EXPECT_TRUE(torch::equal(archive[7].second, (torch::arange(7) + 7).to(torch::kChar)));

  write_weights(folder_ / "made.pt", archive);
  write_weights_folder(folder_ / "made_folder", archive, 16);
  write_weights(folder_ / "made.safetensors", archive);
  const nn::Layers net = models::resnet18({.width = 4});
  load_weights(net, folder_ / "torchvision.pt");
  NamedTensors all = net.named_parameters();
  for (const auto& buffer : net.named_buffers()) all.push_back(buffer);
  write_weights(folder_ / "made_torchvision.pt", rename_weights(all, "torchvision"));
  peer("check");
}

// Every third tensor is cut into rows. A row of the first one is cut into two boxes of one rank.
TEST_F(WithPython, ReadsACheckpointOfManyRanks) {
  const NamedTensors tensors = read_weights(folder_ / "plain.pt").tensors;
  const auto errors = on_ranks(3, [&](const SaveRanks& ranks) {
    std::vector<TensorShard> mine;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto& [name, tensor] = tensors[i];
      if (i % 3 != 0) {
        if (static_cast<int>(i % 3) == ranks.rank) mine.push_back({name, tensor});
        continue;
      }
      if (ranks.rank == 2) continue;
      std::vector<std::int64_t> offset(static_cast<std::size_t>(tensor.dim()), 0);
      if (i == 0 && ranks.rank == 0) {
        mine.push_back({name, tensor.narrow(0, 0, 1).narrow(1, 0, 1), {0, 0}, {2, 3}});
        mine.push_back({name, tensor.narrow(0, 0, 1).narrow(1, 1, 2), {0, 1}, {2, 3}});
        continue;
      }
      offset[0] = ranks.rank;
      mine.push_back({name, ranks.rank == 0 ? tensor.narrow(0, 0, 1) : tensor.slice(0, 1), offset,
                      tensor.sizes().vec()});
    }
    write_checkpoint(folder_ / "parts", {{"weights", mine}}, "{}", ranks);
  });
  ASSERT_EQ(errors, std::vector<std::string>(3));
  peer("parts");
}

TEST_F(WithPython, TorchvisionsResNetGivesTheSameLogits) {
  expect_same_outputs(models::resnet18({.width = 4}), "torchvision", "torchvision's");
  expect_same_outputs(models::resnet18_flat({.width = 4}), "torchvision", "torchvision's");
}

TEST_F(WithPython, TheReferenceProgramsNetsGiveTheSameOutputs) {
  expect_same_outputs(models::resnet18({.width = 4}), "reference_resnet",
                      "the reference programs'");
  expect_same_outputs(models::unet({.width = 4}), "reference_unet", "the reference programs'");
  expect_same_outputs(models::unet({.width = 4}), "known_unet", "Pytorch-UNet's");
}

}  // namespace
}  // namespace trestle::checkpoint
