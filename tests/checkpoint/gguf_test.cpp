#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/support/message_of.h"
#include "trestle/base/files.h"
#include "trestle/checkpoint/weights.h"

namespace trestle::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path gguf_golden = fs::path(TRESTLE_SOURCE_DIR) / "tests/golden/gguf";

at::Tensor floats_of_python() {
  const std::string bytes = read_file(gguf_golden / "types.f32");
  at::Tensor all = torch::empty({static_cast<std::int64_t>(bytes.size() / sizeof(float))});
  std::memcpy(all.mutable_data_ptr<float>(), bytes.data(), bytes.size());
  return all;
}

TEST(Gguf, ListsTensorsAsFloats) {
  const auto listed = list_weights(gguf_golden / "types.gguf");
  ASSERT_EQ(listed.size(), 11u);
  EXPECT_EQ(listed[8].name, "q4_k");
  EXPECT_EQ(listed[8].type, at::kFloat);
  EXPECT_EQ(listed[8].shape, (std::vector<std::int64_t>{12, 256}));
}

TEST(Gguf, ReadsWhatPythonReads) {
  const TensorFile file = read_weights(gguf_golden / "types.gguf");
  const at::Tensor expected = floats_of_python();
  std::int64_t first = 0;
  for (const auto& [name, tensor] : file.tensors) {
    EXPECT_TRUE(torch::equal(tensor.flatten(), expected.narrow(0, first, tensor.numel()))) << name;
    first += tensor.numel();
  }
  EXPECT_EQ(first, expected.numel());
  EXPECT_EQ(file.metadata.at("general.architecture"), "llama");
  EXPECT_EQ(file.metadata.at("test.i16"), "-30000");
  EXPECT_EQ(file.metadata.at("test.yes"), "true");
  EXPECT_FALSE(file.metadata.contains("test.words"));
}

TEST(Gguf, LoadsIntoAModelOfAnyFloatingType) {
  const at::Tensor f32 = torch::zeros({3, 4, 5}, torch::kDouble);
  const at::Tensor q6 = torch::zeros({256, 12}, torch::kBFloat16).t();
  const LoadReport report =
      load_weights({{"f32", f32}, {"q6_k", q6}}, gguf_golden / "types.gguf", {.strict = false});
  EXPECT_EQ(report.loaded, 2u);
  EXPECT_EQ(report.unexpected.size(), 9u);
  const at::Tensor expected = floats_of_python();
  EXPECT_TRUE(torch::equal(f32.flatten(), expected.narrow(0, 0, 60).to(torch::kDouble)));
  const at::Tensor last = expected.narrow(0, expected.numel() - 12 * 256, 12 * 256);
  EXPECT_TRUE(torch::equal(q6.flatten(), last.to(torch::kBFloat16)));
}

// More than 64 MiB as floats, which are converted in the place of their bf16.
TEST(Gguf, FillsLargeTensorsOfBf16) {
  constexpr std::int64_t rows = 4099, columns = 4096;
  const at::Tensor halves = torch::randn({rows, columns}).to(torch::kHalf);
  const fs::path path = fs::path(TRESTLE_BINARY_DIR) / "scratch/large.gguf";
  fs::create_directories(path.parent_path());
  {
    std::ofstream out(path, std::ios::binary);
    const auto add = [&](auto number) {
      out.write(reinterpret_cast<const char*>(&number), sizeof number);
    };
    out << "GGUF";
    add(std::uint32_t{3});
    add(std::uint64_t{1});  // tensors
    add(std::uint64_t{0});  // entries of metadata
    add(std::uint64_t{1});
    out << "w";
    add(std::uint32_t{2});
    add(static_cast<std::uint64_t>(columns));
    add(static_cast<std::uint64_t>(rows));
    add(std::uint32_t{1});  // F16
    add(std::uint64_t{0});
    out << std::string(static_cast<std::size_t>(-out.tellp() & 31), '\0');
    out.write(static_cast<const char*>(halves.const_data_ptr()),
              static_cast<std::streamsize>(halves.nbytes()));
  }
  const at::Tensor short_floats = torch::zeros({rows, columns}, torch::kBFloat16);
  load_weights({{"w", short_floats}}, path);
  EXPECT_TRUE(torch::equal(short_floats, halves.to(torch::kFloat).to(torch::kBFloat16)));
  fs::remove(path);
}

TEST(Gguf, IsRecognizedByItsFirstBytes) {
  const fs::path path = fs::path(TRESTLE_BINARY_DIR) / "scratch/gguf_test.safetensors";
  fs::create_directories(path.parent_path());
  // 123 tensors: byte 8 is "{", as in a safetensors file.
  std::ofstream(path, std::ios::binary)
      << std::string("GGUF\3\0\0\0{\0\0\0\0\0\0\0", 16) << std::string(16, '\0');
  EXPECT_THAT(support::message_of<FormatError>([&] { list_weights(path); }),
              HasSubstr("cannot trust this GGUF file: it announces 123 tensors"));
  fs::remove(path);
}

TEST(HuggingFaceFolder, MayHoldOneFileOfEitherKind) {
  const fs::path folder = fs::path(TRESTLE_BINARY_DIR) / "scratch/hugging_face_folder_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  EXPECT_THAT(support::message_of<FileError>([&] { list_weights(folder); }),
              HasSubstr("is a folder without a checkpoint"));
  const at::Tensor pickled = torch::arange(6.0F), safe = torch::arange(4.0F);
  write_weights(folder / "a.pt", {{"a", pickled}});
  fs::rename(folder / "a.pt", folder / "pytorch_model.bin");
  EXPECT_TRUE(torch::equal(read_weights(folder).tensors.at(0).second, pickled));
  // Python's from_pretrained() prefers it too, also to the index of several files.
  write_weights(folder / "model.safetensors", {{"b", safe}});
  EXPECT_TRUE(torch::equal(read_weights(folder).tensors.at(0).second, safe));
  write_weights_folder(folder / "parts", {{"a", pickled}, {"b", pickled}}, 30);
  for (const auto& part : fs::directory_iterator(folder / "parts"))
    fs::copy_file(part.path(), folder / part.path().filename());
  EXPECT_TRUE(torch::equal(read_weights(folder).tensors.at(0).second, safe));
  EXPECT_THAT(support::message_of<UsageError>(
                  [&] { read_weights(folder / "model.safetensors.index.json"); }),
              HasSubstr("also has model.safetensors"));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace trestle::checkpoint
