// A rank reads its slices of public weights, and their bytes alone.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "tests/models/tiny_transformers.h"
#include "tests/tensor_parallel/checks.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/models/transformer/public_weights.h"
#include "trestle/models/transformer/transformer.h"

namespace trestle::models {
namespace {

namespace fs = std::filesystem;

// Bytes that this process has read.
std::int64_t bytes_read() {
  std::ifstream in("/proc/self/io");
  std::string key;
  std::int64_t value = 0;
  while (in >> key >> value)
    if (key == "rchar:") return value;
  return 0;
}

checkpoint::LoadReport load_boxes(const std::vector<PublicBox>& boxes, const fs::path& file) {
  NamedTensors into;
  checkpoint::LoadOptions options{.rename = [](const std::string& name) { return name; }};
  for (const PublicBox& box : boxes) {
    if (!box.offset.empty()) options.boxes[into.size()] = {box.offset, box.whole};
    into.emplace_back(box.name, box.view);
  }
  return checkpoint::load_weights(into, file, options);
}

struct Files {
  Files() : folder(fs::path(TRESTLE_BINARY_DIR) / "scratch/public_slices_test") {
    fs::create_directories(folder);
  }
  ~Files() { fs::remove_all(folder); }
  fs::path folder;
};

void compare(TransformerConfig config, const std::string& ending, double most_read) {
  const Files files;
  const fs::path file = files.folder / ("model" + ending);
  const nn::Layers whole = transformer(config);
  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, tensor] : whole.named_parameters()) weights[name] = tensor.detach();
  NamedTensors stored = public_views(config, PublicNames::HuggingFace, whole.named_parameters());
  for (auto& [name, tensor] : stored) tensor = tensor.contiguous();
  checkpoint::write_weights(file, stored);
  for (const int ranks : {2, 4}) {
    std::int64_t all = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      TransformerOptions options{.seed = 7};  // other weights
      options.tensor.ranks = tensor_parallel::TensorRanks::on_paper(rank, ranks);
      const nn::Layers split = transformer(config, options);
      const nn::ParameterSlices slices = nn::slices_of(split.graph());
      const NamedTensors ours = split.named_parameters();
      const std::int64_t before = bytes_read();
      const auto report =
          load_boxes(public_boxes(config, PublicNames::HuggingFace, ours, slices), file);
      all += bytes_read() - before;
      EXPECT_TRUE(report.whole());
      EXPECT_EQ(report.loaded, stored.size());
      for (const auto& [name, tensor] : ours) {
        const at::Tensor& full = weights.at(name);
        const auto slice = slices.find(name);
        EXPECT_TRUE(at::equal(
            tensor, slice == slices.end() ? full : testing::slice_of(full, slice->second)))
            << name << " on rank " << rank << " of " << ranks;
      }
    }
    EXPECT_LT(static_cast<double>(all), most_read * static_cast<double>(fs::file_size(file)));
  }
}

TransformerConfig wider(TransformerConfig config) {
  config.width = 128;
  config.head_size = 32;
  config.mlp = 512;
  config.vocabulary = 1003;
  config.vocabulary_multiple = 8;
  return config;
}

// GPT-2's Conv1D stores [inputs, outputs], and its queries, keys and values as one matrix.
TEST(PublicSlices, Gpt2ReadsItsOwnBytes) { compare(wider(tiny_gpt2()), ".safetensors", 1.2); }

TEST(PublicSlices, LlamaWithFewerKeysThanRanksReadsItsOwnBytes) {
  compare(wider(tiny_llama()), ".safetensors", 1.2);
}

// A torch archive is read tensor by tensor.
TEST(PublicSlices, TorchArchivesAreReadIntoSlices) { compare(wider(tiny_gpt2()), ".pt", 20); }

}  // namespace
}  // namespace trestle::models
