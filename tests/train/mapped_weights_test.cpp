#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/cli/lost_pages.h"
#include "trestle/generate/generate.h"
#include "trestle/models/transformer/public_weights.h"
#include "trestle/models/transformer/read_config.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/train/language/export_model.h"
#include "trestle/train/language/load_public_weights.h"
#include "trestle/train/language/text_model.h"

// Weights of a language model on the pages of their file, and the memory and the bytes of the file
// that loading takes, as Linux counts them for the process.
namespace trestle::train {
namespace {

namespace fs = std::filesystem;
using models::TransformerConfig;
using Style = TransformerConfig::Style;

constexpr std::int64_t mebibyte = 1 << 20;

// A line such as "RssAnon:  1234 kB" in /proc/self/status, in bytes.
std::int64_t status_bytes(const std::string& name) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  ADD_FAILURE() << "/proc/self/status has no " << name;
  return 0;
}

std::int64_t own_memory() {
  malloc_trim(0);
  return status_bytes("RssAnon");
}

// From now on VmHWM is the peak of resident memory since this call.
void forget_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

// The bytes that this process has read by system calls.
std::int64_t bytes_read() {
  std::ifstream in("/proc/self/io");
  std::string name;
  std::int64_t count = 0;
  in >> name >> count;
  EXPECT_EQ(name, "rchar:");
  return count;
}

bool is_mapped(const at::Tensor& tensor) {
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  std::ifstream in("/proc/self/maps");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    words >> std::hex >> begin >> dash >> end;
    if (address >= begin && address < end) return line.find(".safetensors") != std::string::npos;
  }
  return false;
}

TransformerConfig config_of(Style style, std::int64_t width = 64, std::int64_t layers = 2) {
  const bool llama = style == Style::Llama;
  TransformerConfig config{.style = style,
                           .vocabulary = 16 * width,
                           .context = 64,
                           .width = width,
                           .layers = layers,
                           .heads = 8,
                           .kv_heads = llama ? 2 : 8,
                           .head_size = width / 8,
                           .mlp = 4 * width,
                           .tied_head = !llama};
  if (!llama) return config;
  config.qkv_bias = config.out_bias = config.mlp_bias = false;
  config.activation = TransformerConfig::Activation::Silu;
  return config;
}

// 176 MB in fp32.
TransformerConfig large_config() { return config_of(Style::Llama, 512, 11); }

// Numbers that are cheap to make, different for each parameter.
nn::Layers filled(const TransformerConfig& config, at::ScalarType type = at::kFloat) {
  const at::NoGradGuard no_grad;
  nn::Layers net =
      models::transformer(config, {.weights = models::InitialWeights::Unset, .type = type});
  std::int64_t number = 0;
  for (const auto& [name, tensor] : net.named_parameters()) {
    const at::Tensor period = torch::arange(251, torch::kFloat).add_(number++).remainder_(251);
    at::Tensor flat = tensor.detach().view(-1);
    std::int64_t done = std::min<std::int64_t>(flat.numel(), 251);
    flat.narrow(0, 0, done).copy_(period.narrow(0, 0, done));
    while (done < flat.numel()) {
      const std::int64_t more = std::min(done, flat.numel() - done);
      flat.narrow(0, done, more).copy_(flat.narrow(0, 0, more));
      done += more;
    }
    flat.sub_(125).mul_(tensor.dim() > 1 ? 4e-4 : 1e-2);
  }
  return net;
}

std::int64_t bytes_of(const NamedTensors& tensors) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

std::vector<std::int64_t> greedy(const TextModel& model, std::int64_t tokens = 8) {
  return generate::generate(generate::LanguageModel(model.layers, model.config), {1, 2, 3},
                            {.most_tokens = tokens})
      .ids;
}

class MappedWeights : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::path(TRESTLE_BINARY_DIR) / "scratch" /
        (std::string("mapped_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // As `trestle export --names hugging_face`.
  fs::path exported(const TransformerConfig& config, at::ScalarType type = at::kFloat) const {
    TextModel model;
    model.config = config;
    model.layers = filled(config, type);
    export_text_model(model, folder_ / "model");
    return folder_ / "model";
  }

  fs::path folder_;
};

// A config that ties the head, beside a head of its own in the file: Python would use it.
TEST_F(MappedWeights, RefusesAHeadThatIsNotTheTiedTable) {
  TransformerConfig config = models::named_config("smollm2-135m");
  config.vocabulary = 40;
  config.width = 16;
  config.layers = 1;
  config.heads = config.kv_heads = 2;
  config.head_size = 8;
  config.mlp = 32;
  const fs::path folder = exported(config);
  NamedTensors tensors = checkpoint::read_weights(folder).tensors;
  const auto table = std::ranges::find_if(
      tensors, [](const auto& one) { return one.first == "model.embed_tokens.weight"; });
  tensors.emplace_back("lm_head.weight", table->second.clone());
  checkpoint::write_tensors(folder / "model.safetensors", tensors);
  EXPECT_EQ(open_text_model(folder).known_tokens(), 40) << "the same numbers";
  tensors.back().second[3][5] += 1;
  checkpoint::write_tensors(folder / "model.safetensors", tensors);
  try {
    open_text_model(folder);
    ADD_FAILURE() << "no error";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("tie_word_embeddings"));
  }
}

void expect_equals_file(const TextModel& model, const fs::path& folder) {
  std::map<std::string, at::Tensor> stored;
  for (auto& [name, tensor] : checkpoint::read_weights(folder).tensors)
    stored[models::canonical_name(model.config, models::PublicNames::HuggingFace, name)] = tensor;
  const NamedTensors views = models::public_views(model.config, models::PublicNames::HuggingFace,
                                                  model.layers.named_parameters());
  for (const auto& [name, view] : views)
    EXPECT_TRUE(torch::equal(view, stored.at(name).to(view.scalar_type()))) << name;
}

TEST_F(MappedWeights, AnExportedFolderIsOpenedWithoutACopy) {
  const fs::path folder = exported(large_config());
  const auto file = static_cast<std::int64_t>(fs::file_size(folder / "model.safetensors"));
  ASSERT_GT(file, 170 * mebibyte);
  const std::int64_t before = own_memory(), files_before = status_bytes("RssFile"),
                     read_before = bytes_read();
  const TextModel model = open_text_model(folder);
  EXPECT_LT(own_memory() - before, file / 50);
  EXPECT_LT(bytes_read() - read_before, mebibyte);
  EXPECT_EQ(greedy(model, 2).size(), 2U);
  // Every weight but unused rows of the embedding was read, on the file's own pages.
  EXPECT_LT(own_memory() - before, file / 5);
  EXPECT_GT(status_bytes("RssFile") - files_before, file * 8 / 10);
  expect_equals_file(model, folder);
}

TEST_F(MappedWeights, AnotherTypeIsOneCopy) {
  const fs::path folder = exported(large_config());
  const auto file = static_cast<std::int64_t>(fs::file_size(folder / "model.safetensors"));
  const std::int64_t before = own_memory(), resident = status_bytes("VmRSS");
  forget_peak();
  const TextModel model = open_text_model(folder, {.type = at::kBFloat16});
  EXPECT_GT(own_memory() - before, file / 2 - mebibyte);
  EXPECT_LT(own_memory() - before, file / 2 + file / 20);
  // Beside them, the fp32 numbers of a few tensors.
  EXPECT_LT(status_bytes("VmHWM") - resident, file / 2 + 70 * mebibyte);
  expect_equals_file(model, folder);
}

// The model's weights exist before, as in a training: loading needs nothing beside them.
TEST_F(MappedWeights, TrainingLoadsWithoutASecondCopy) {
  const TransformerConfig config = large_config();
  const fs::path folder = exported(config);
  const nn::Layers net = filled(config);
  const NamedTensors ours = net.named_parameters();
  for (const auto& [name, tensor] : ours) tensor.detach().zero_();
  own_memory();
  const std::int64_t before = status_bytes("VmRSS");
  forget_peak();
  EXPECT_TRUE(load_transformer_weights(config, ours, folder, {}).whole());
  EXPECT_LT(status_bytes("VmHWM") - before, 8 * mebibyte);
  TextModel model;
  model.config = config;
  model.layers = net;
  expect_equals_file(model, folder);
  EXPECT_FALSE(is_mapped(ours[0].second));
}

// A GGUF file of fp32 numbers under llama.cpp's names.
void write_gguf(const fs::path& path, const NamedTensors& tensors) {
  std::string bytes = "GGUF";
  const auto number = [&](std::uint64_t value, std::size_t size = 8) {
    bytes.append(reinterpret_cast<const char*>(&value), size);
  };
  number(3, 4);
  number(tensors.size());
  number(0);
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    number(name.size());
    bytes += name;
    number(static_cast<std::uint64_t>(tensor.dim()), 4);
    for (std::int64_t d = tensor.dim(); d-- > 0;)
      number(static_cast<std::uint64_t>(tensor.size(d)));
    number(0, 4);
    number(offset);
    offset += tensor.nbytes();
    ASSERT_EQ(offset % 32, 0U) << name;
  }
  bytes.resize((bytes.size() + 31) / 32 * 32);
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor rows = tensor.contiguous();
    out.write(static_cast<const char*>(rows.const_data_ptr()),
              static_cast<std::streamsize>(rows.nbytes()));
  }
}

TEST_F(MappedWeights, EachStageReadsItsOwnBytesAlone) {
  const TransformerConfig config = config_of(Style::Llama, 384, 7);
  exported(config);
  write_gguf(folder_ / "model.gguf", models::public_views(config, models::PublicNames::Gguf,
                                                          filled(config).named_parameters()));
  for (const fs::path& path : {folder_ / "model", folder_ / "model.gguf"}) {
    const NamedTensors whole = filled(config).named_parameters();
    const std::int64_t begin = bytes_read();
    checkpoint::list_weights(path);
    const std::int64_t header = bytes_read() - begin;
    std::int64_t sum = 0;
    for (const std::vector<std::string>& layers :
         {std::vector<std::string>{"embed.", "blocks.0.", "blocks.1."},
          {"blocks.2.", "blocks.3.", "blocks.4."},
          {"blocks.5.", "blocks.6.", "norm.", "head."}}) {
      NamedTensors stage;
      for (const auto& [name, tensor] : whole)
        for (const std::string& layer : layers)
          if (name.starts_with(layer)) stage.emplace_back(name, tensor);
      const std::int64_t before = bytes_read();
      load_transformer_weights(config, stage, path, {.strict = false});
      const std::int64_t read = bytes_read() - before;
      EXPECT_GE(read, bytes_of(stage)) << path;
      EXPECT_LE(read, bytes_of(stage) + 4 * header) << path;
      sum += bytes_of(stage);
    }
    EXPECT_EQ(sum, bytes_of(whole));
    EXPECT_LT(4 * header, sum / 50) << "the measure is too coarse";
  }
}

TEST_F(MappedWeights, WritingAWeightDoesNotReachTheFile) {
  for (const Style style : {Style::Llama, Style::Gpt2}) {
    fs::remove_all(folder_ / "model");
    const fs::path folder = exported(config_of(style));
    const std::string bytes = read_file(folder / "model.safetensors");
    const TextModel model = open_text_model(folder), other = open_text_model(folder);
    const std::vector<std::int64_t> ids = greedy(other);
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model.layers.parameters()) {
      const at::Tensor expected = parameter + 1;
      parameter.add_(1);
      EXPECT_TRUE(torch::equal(parameter, expected));
    }
    EXPECT_EQ(read_file(folder / "model.safetensors"), bytes);
    expect_equals_file(other, folder);
    EXPECT_EQ(greedy(other), ids);
  }
}

TEST_F(MappedWeights, AFileThatIsReplacedOrRemovedIsStillUsed) {
  const fs::path folder = exported(config_of(Style::Llama));
  const TextModel model = open_text_model(folder);
  const std::vector<std::int64_t> ids = greedy(model);
  TextModel zero;
  zero.config = model.config;
  zero.layers = filled(model.config);
  for (const at::Tensor& parameter : zero.layers.parameters()) parameter.detach().zero_();
  export_text_model(zero, folder, Overwrite::Allow);
  EXPECT_EQ(greedy(model), ids);
  EXPECT_EQ(greedy(open_text_model(folder)), std::vector<std::int64_t>(8, 0));
  fs::remove_all(folder);
  EXPECT_EQ(greedy(model), ids);
}

// Exporting a mapped model over its own file is a replacement too.
TEST_F(MappedWeights, AModelIsExportedOverItsOwnFile) {
  const fs::path folder = exported(config_of(Style::Llama));
  const std::string bytes = read_file(folder / "model.safetensors");
  export_text_model(open_text_model(folder), folder, Overwrite::Allow);
  EXPECT_EQ(read_file(folder / "model.safetensors"), bytes);
}

TEST_F(MappedWeights, TheOwnLayoutTypeAndAlignmentAreMapped) {
  const auto mapped = [](const NamedTensors& tensors) {
    std::size_t count = 0;
    for (const auto& [name, tensor] : tensors) count += is_mapped(tensor) ? 1 : 0;
    return count;
  };
  const fs::path folder = exported(config_of(Style::Llama));
  const TextModel llama = open_text_model(folder);
  const NamedTensors all = llama.layers.named_parameters();
  EXPECT_EQ(mapped(all), all.size());  // fused projections too
  EXPECT_EQ(mapped(open_text_model(folder, {.type = at::kBFloat16}).layers.named_parameters()), 0U);

  // Trestle's own names, as in a run's folder.
  checkpoint::write_tensors(folder_ / "best.safetensors", all);
  const nn::Layers net = filled(llama.config);
  load_transformer_weights(llama.config, net.named_parameters(), folder_ / "best.safetensors",
                           {.memory = checkpoint::LoadMemory::Mapped});
  EXPECT_EQ(mapped(net.named_parameters()), all.size());

  // The same tensors behind a header that is 8 bytes longer.
  std::string bytes = read_file(folder / "model.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  bytes.insert(sizeof length + length, 8, ' ');
  length += 8;
  std::memcpy(bytes.data(), &length, sizeof length);
  write_file(folder / "model.safetensors", bytes);
  const TextModel shifted = open_text_model(folder);
  EXPECT_EQ(mapped(shifted.layers.named_parameters()), 0U);
  expect_equals_file(shifted, folder);
  EXPECT_EQ(greedy(shifted), greedy(llama));

  // Keys apart from queries and values are no fused projection.
  NamedTensors apart = checkpoint::read_weights(folder).tensors;
  std::stable_partition(apart.begin(), apart.end(), [](const auto& one) {
    return one.first.find("k_proj") == std::string::npos;
  });
  checkpoint::write_tensors(folder / "model.safetensors", apart);
  const TextModel sorted = open_text_model(folder);
  EXPECT_EQ(mapped(sorted.layers.named_parameters()), all.size() - 2);
  expect_equals_file(sorted, folder);

  // Hugging Face stores the products of GPT-2 transposed, eight in two blocks.
  fs::remove_all(folder);
  exported(config_of(Style::Gpt2));
  const TextModel gpt2 = open_text_model(folder);
  const NamedTensors parameters = gpt2.layers.named_parameters();
  EXPECT_EQ(mapped(parameters), parameters.size() - 8);
  expect_equals_file(gpt2, folder);
}

TEST_F(MappedWeights, FilesOfAnIndexAreMapped) {
  const TransformerConfig config = config_of(Style::Llama);
  const fs::path folder = exported(config);
  const auto tensors = checkpoint::read_weights(folder).tensors;
  checkpoint::write_weights_folder(folder_ / "many", tensors, 200'000);
  ASSERT_TRUE(fs::exists(folder_ / "many/model.safetensors.index.json"));
  fs::copy(folder / "config.json", folder_ / "many/config.json");
  const TextModel model = open_text_model(folder_ / "many");
  EXPECT_TRUE(is_mapped(model.layers.named_parameters()[0].second));
  EXPECT_TRUE(is_mapped(model.layers.named_parameters().back().second));
  expect_equals_file(model, folder);
}

using LostPages = MappedWeights;

TEST_F(LostPages, AFileThatBecomesShorterEndsTheProgramWithItsName) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const fs::path folder = exported(config_of(Style::Llama, 256));
  EXPECT_EXIT(
      {
        cli::report_lost_pages();
        const TextModel model = open_text_model(folder);
        fs::resize_file(folder / "model.safetensors", 4096);
        greedy(model);
      },
      testing::ExitedWithCode(1), "model.safetensors: could not be read any more");
}

}  // namespace
}  // namespace trestle::train
