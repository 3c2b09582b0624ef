// Folders of DeepSpeed, torch.distributed.checkpoint and Hugging Face, without their tensors.
// Python wrote them (tools/golden/make_deepspeed_goldens.py, make_dcp_goldens.py).
#include "trestle/checkpoint/files/foreign/foreign_folder.h"

#include <gmock/gmock.h>

#include <array>
#include <fstream>

#include "tests/fuzz/fuzz.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/foreign/deepspeed_slots.h"
#include "trestle/checkpoint/files/foreign/foreign_index.h"
#include "trestle/checkpoint/files/is_checkpoint.h"
#include "trestle/checkpoint/files/pickle/tensor_archive.h"
#include "trestle/checkpoint/files/pickle/zip_records.h"
#include "trestle/checkpoint/files/safetensors_header.h"
#include "trestle/checkpoint/files/train_state.h"

namespace trestle::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const fs::path golden = fs::path(TRESTLE_SOURCE_DIR) / "tests/golden";
const fs::path zero = golden / "deepspeed", frozen = golden / "deepspeed_frozen",
               groups = golden / "deepspeed_groups";

class ForeignFolder : public testing::Test {
 protected:
  void SetUp() override {
    scratch_ =
        fs::path(TRESTLE_BINARY_DIR) / "scratch" /
        (std::string("foreign_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(scratch_);
    fs::create_directories(scratch_);
  }
  void TearDown() override { fs::remove_all(scratch_); }

  // A copy of a golden folder, to be changed.
  fs::path copy(const fs::path& from) const {
    fs::copy(from, scratch_ / from.filename(), fs::copy_options::recursive);
    return scratch_ / from.filename();
  }

  fs::path scratch_;
};

// write_file() would flush each.
void put(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// The file with another pickle of the same length, and its checksum everywhere.
std::string with_pickle(const std::string& whole, const ZipRecord& record, std::string pickle) {
  pickle.resize(record.bytes, '.');
  const auto as_bytes = [](std::uint32_t crc) {
    return std::string(reinterpret_cast<const char*>(&crc), sizeof crc);
  };
  const FileBytes own("pickle", pickle);
  const std::string old = as_bytes(record.crc), fresh = as_bytes(own.crc32(0, record.bytes));
  std::string file = whole;
  for (std::size_t at = file.find(old); at != std::string::npos; at = file.find(old, at + 1))
    file.replace(at, old.size(), fresh);
  return file.replace(record.begin, record.bytes, pickle);
}

ZipRecord pickle_of(const std::string& whole) {
  ZipRecord pickle;
  const FileBytes file("whole", whole);
  for (const auto& [name, record] : find_zip_records(file, 0, whole.size()))
    if (name.ends_with("data.pkl")) pickle = record;
  return pickle;
}

CheckpointIndex index_of(const fs::path& folder) {
  const auto found = find_foreign_folder(folder);
  if (!found) throw FormatError("no such folder");
  return read_foreign_index(*found);
}

std::string refusal(const fs::path& folder) {
  try {
    index_of(folder);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::vector<std::string> names(const std::vector<IndexedTensor>& tensors) {
  std::vector<std::string> all;
  for (const IndexedTensor& tensor : tensors) all.push_back(tensor.name);
  return all;
}

TEST_F(ForeignFolder, DeepspeedsFoldersHaveAllTensorsAtEveryStage) {
  for (const char* const precision : {"fp32", "bf16"})
    for (int stage = 0; stage < 4; ++stage) {
      const auto index = index_of(zero / text(precision, "_zero", stage));
      EXPECT_EQ(index.kind, FolderKind::Deepspeed);
      const auto& weights = index.groups.at("weights");
      EXPECT_EQ(weights.size(), precision == std::string("fp32") ? 9u : 6u) << stage;
      EXPECT_EQ(index.groups.at("optimizer").size(), 18u) << stage;
      EXPECT_EQ(weights[0].name, "0.weight");
      EXPECT_EQ(weights[0].dtype, "F32") << "the weights that the optimizer steps";
      EXPECT_EQ(weights[0].shape, (Sizes{5, 6}));
      const TrainState state = parse_state(index.state, "state");
      EXPECT_EQ(state.step, 3);
      EXPECT_EQ(state.numbers.at("client.epoch"), 7);
    }
}

// The rows of a parameter that DeepSpeed freezes are in all ranks' files of weights.
TEST_F(ForeignFolder, ShardsOfFrozenParametersAreNeeded) {
  const fs::path folder = copy(frozen / "fp32_zero3") / "global_step3";
  const auto index = index_of(folder);
  for (const IndexedTensor& tensor : index.groups.at("weights"))
    EXPECT_GE(tensor.boxes.size(), tensor.name == "2.weight" ? 2u : 1u) << tensor.name;
  const fs::path first = folder / deepspeed_model_file(3, 0),
                 second = folder / deepspeed_model_file(3, 1);
  fs::remove(second);
  EXPECT_THAT(refusal(folder), AllOf(HasSubstr(second.filename().string()), HasSubstr("missing")));
  fs::copy_file(zero / "fp32_zero3/global_step3" / second.filename(), second);
  EXPECT_THAT(refusal(folder),
              AllOf(HasSubstr(second.filename().string()), HasSubstr("it has no '0.bias'")));
  fs::copy_file(second, first, fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(folder), HasSubstr("elements"));
}

// Python's strings may hold halves of characters, which no JSON can.
TEST_F(ForeignFolder, NamesOfTheClientStateAreText) {
  const fs::path folder = copy(zero / "fp32_zero1") / "global_step3";
  const fs::path path = folder / deepspeed_model_file(1, 0);
  const std::string whole = read_file(path);
  const ZipRecord pickle = pickle_of(whole);
  std::string bytes = whole.substr(pickle.begin, pickle.bytes);
  bytes.replace(bytes.find("epoch"), 5, "e\xed\xa0\x80h");
  put(path, with_pickle(whole, pickle, bytes));
  EXPECT_THAT(refusal(folder), AllOf(HasSubstr("not UTF-8"), HasSubstr("client_state")));
}

TEST(DeepspeedSlots, AreMatchedInOrderOrByShape) {
  const Sizes matrix = {5, 6}, row = {5}, other = {3};
  const auto match = [](const std::vector<OptimizerSlot>& slots, const std::vector<Sizes>& shapes) {
    const SlotMatch found = match_slots(slots, shapes);
    std::vector<int> numbers;
    for (const auto& number : found.parameters)
      numbers.push_back(number ? static_cast<int>(*number) : -1);
    return found.problem.empty() ? text(join(numbers, " ")) : found.problem;
  };
  // One group with all parameters: the order of the model, whatever the shapes.
  EXPECT_EQ(match({{0, row}, {0, {}}, {0, row}}, {row, row, row}), "0 1 2");
  EXPECT_THAT(match({{0, row}, {0, matrix}}, {matrix, row}), HasSubstr("another order"));
  // Groups, and frozen parameters that are in none.
  EXPECT_EQ(match({{0, matrix}, {1, row}, {1, other}, {1, row}}, {row, matrix, other, row}),
            "1 0 2 3");
  EXPECT_EQ(match({{0, matrix}, {0, other}}, {matrix, row, other}), "0 2");
  EXPECT_EQ(match({{0, matrix}, {1, {}}, {1, other}}, {matrix, row, other}), "0 -1 2");
  EXPECT_THAT(match({{0, row}}, {row, row}),
              AllOf(HasSubstr("1 of shape [5] in one group"), HasSubstr("the model has 2")));
  EXPECT_THAT(match({{0, row}, {1, row}}, {row, row}), HasSubstr("in several groups"));
  EXPECT_THAT(match({{0, row}, {0, row}, {0, row}}, {row, row}), HasSubstr("the model has 2"));
  EXPECT_THAT(match({{0, matrix}, {0, other}, {0, other}}, {matrix, row}),
              HasSubstr("the model has 0"));
}

TEST_F(ForeignFolder, ATagsFolderIsFoundAloneAndThroughLatest) {
  EXPECT_EQ(find_foreign_folder(zero / "fp32_zero1")->folder, zero / "fp32_zero1/global_step3");
  EXPECT_EQ(find_foreign_folder(zero / "fp32_zero3/global_step3")->folder,
            zero / "fp32_zero3/global_step3");
  EXPECT_TRUE(is_checkpoint(zero / "fp32_zero1"));
  EXPECT_FALSE(is_checkpoint(zero));
  const fs::path folder = copy(zero / "fp32_zero1");
  for (const char* const tag : {"../fp32_zero1/global_step3", "", ".", "none", "/"}) {
    write_file(folder / "latest", tag);
    EXPECT_FALSE(find_foreign_folder(folder)) << tag;
  }
}

TEST_F(ForeignFolder, DcpsFolderHasWeightsAndOptimizerUnderTheModelsNames) {
  const auto index = index_of(golden / "dcp");
  EXPECT_THAT(names(index.groups.at("weights")),
              testing::UnorderedElementsAre("fc.weight", "fc.columns", "fc.bias",
                                            "norm.num_batches_tracked"));
  EXPECT_THAT(
      names(index.groups.at("optimizer")),
      testing::UnorderedElementsAre("fc.weight.step", "fc.weight.exp_avg", "fc.weight.exp_avg_sq"));
  for (const IndexedTensor& tensor : index.groups.at("weights"))
    if (tensor.name == "fc.columns") {
      EXPECT_EQ(tensor.dtype, "BF16");
      ASSERT_EQ(tensor.boxes.size(), 2u);
      EXPECT_EQ(tensor.boxes[1].box, (Box{{0, 2}, {3, 2}}));
    }
}

TEST_F(ForeignFolder, MissingFilesAndTensorsAreNamed) {
  const fs::path stage1 = copy(zero / "fp32_zero1"), stage3 = copy(zero / "fp32_zero3"),
                 dcp = copy(golden / "dcp");
  fs::remove(stage1 / "global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt");
  EXPECT_THAT(refusal(stage1),
              AllOf(HasSubstr("zero_pp_rank_1_mp_rank_00_optim_states.pt"), HasSubstr("missing")));
  // Rank 0's file again: both have the first elements, and none has the last.
  fs::copy_file(stage3 / "global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt",
                stage1 / "global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt");
  EXPECT_THAT(refusal(stage1), AllOf(HasSubstr("zero_pp_rank_1"), HasSubstr("it has no '")));
  fs::remove(dcp / "__1_0.distcp");
  EXPECT_THAT(refusal(dcp), AllOf(HasSubstr("__1_0.distcp"), HasSubstr("missing")));
  write_file(dcp / "__1_0.distcp", "short");
  EXPECT_THAT(refusal(dcp), AllOf(HasSubstr("__1_0.distcp"), HasSubstr("tensor '")));
}

TEST_F(ForeignFolder, HuggingFacesIndexNamesFilesBesideItOnly) {
  const auto file = [](const std::string& name) {
    const std::string header = format_header({{{name, "F32", {2}, 0, 8}}, {{"format", "pt"}}});
    const std::uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header +
           std::string(8, '\0');
  };
  write_file(scratch_ / "model-00001-of-00002.safetensors", file("a"));
  write_file(scratch_ / "model-00002-of-00002.safetensors", file("b"));
  const auto set = [&](const std::string& map) {
    write_file(scratch_ / hugging_face_index_name,
               "{\"metadata\": {\"total_size\": 16}, \"weight_map\": " + map + "}");
  };
  set(R"({"b": "model-00002-of-00002.safetensors", "a": "model-00001-of-00002.safetensors"})");
  EXPECT_THAT(names(index_of(scratch_).groups.at("weights")), ElementsAre("a", "b"));
  set(R"({"c": "model-00002-of-00002.safetensors"})");
  EXPECT_THAT(refusal(scratch_), AllOf(HasSubstr("no tensor 'c'"), HasSubstr("model-00002")));
  set(R"({"b": "model-00003-of-00002.safetensors"})");
  EXPECT_THAT(refusal(scratch_), AllOf(HasSubstr("missing"), HasSubstr("model-00003")));
  for (const char* const path : {"../x.safetensors", "/x.safetensors", "x.pt", ""}) {
    set(text("{\"b\": \"", path, "\"}"));
    EXPECT_THAT(refusal(scratch_), AllOf(HasSubstr("tensor 'b'"), HasSubstr(".safetensors file")));
  }
  write_file(scratch_ / hugging_face_index_name, "{}");
  EXPECT_THAT(refusal(scratch_), HasSubstr("weight_map"));
}

TEST_F(ForeignFolder, HuggingFacesPickledShardsNameTheWayToConvertThem) {
  write_file(scratch_ / hugging_face_pickled_name, R"({"weight_map": {"a": "pytorch_model.bin"}})");
  EXPECT_THAT(refusal(scratch_),
              AllOf(HasSubstr("pickled shards"), HasSubstr(hugging_face_pickled_name)));
}

// The listed classes are data, and every other name is an error.
TEST_F(ForeignFolder, OnlyListedClassesAreAccepted) {
  const fs::path folder = copy(zero / "fp32_zero1") / "global_step3";
  const fs::path path = folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt";
  const FileBytes file(path);
  EXPECT_THAT(
      [&] {
        try {
          const TensorArchive plain(file);
        } catch (const FormatError& error) {
          return std::string(error.what());
        }
        return std::string();
      }(),
      HasSubstr("deepspeed.runtime.fp16.loss_scaler.LossScaler"));
  std::string metadata = read_file(golden / "dcp/.metadata");
  const std::string known = "MetadataIndex", other = "MetadataIndeX";
  metadata.replace(metadata.find(known), known.size(), other);
  const fs::path dcp = copy(golden / "dcp");
  write_file(dcp / ".metadata", metadata);
  EXPECT_THAT(refusal(dcp), AllOf(HasSubstr("MetadataIndeX"), HasSubstr(".metadata")));
}

// A folder of a few bytes must not describe tensors that fill the memory.
TEST_F(ForeignFolder, StoragesMayBeSharedByFewTensorsOnly) {
  const StoredElements stored{{100, 4096, 1}, 0, "F32"};
  ForeignIndex tied(FolderKind::Dcp, "folder");
  for (int i = 0; i < 2; ++i)
    tied.add_box("weights", text("w", i), {1024}, whole_box({1024}), {"a.pt", stored});
  EXPECT_EQ(tied.finish("{}").groups.at("weights").size(), 2u);
  const auto error = [](const auto& action) {
    try {
      action();
    } catch (const FormatError& failed) {
      return std::string(failed.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_THAT(
      error([&] {
        ForeignIndex many(FolderKind::Dcp, "folder");
        for (int i = 0; i < 100; ++i)
          many.add_box("weights", text("w", i), {1024}, whole_box({1024}), {"a.pt", stored});
      }),
      AllOf(HasSubstr("in one storage"), HasSubstr("a.pt")));
  EXPECT_THAT(error([&] {
                ForeignIndex overlap(FolderKind::Dcp, "folder");
                overlap.add_box("weights", "a", {1024}, whole_box({1024}), {"a.pt", stored});
                overlap.add_box("weights", "b", {1024}, whole_box({1024}),
                                {"a.pt", {{200, 4096, 1}, 0, "F32"}});
                overlap.finish("{}");
              }),
              HasSubstr("overlap"));
  EXPECT_THAT(error([&] {
                ForeignIndex beyond(FolderKind::Dcp, "folder");
                beyond.add_box("weights", "a", {1025}, whole_box({1025}), {"a.pt", stored});
              }),
              AllOf(HasSubstr("tensor 'a' needs 4100 bytes"), HasSubstr("has 4096")));
}

// Truncated and changed files: an error, or the same tensors.
TEST_F(ForeignFolder, DamagedFilesAreErrors) {
  for (const fs::path& from :
       {zero / "fp32_zero1", zero / "fp32_zero3", zero / "bf16_zero0", frozen / "bf16_zero3",
        groups / "bf16_zero0", groups / "bf16_zero3", golden / "dcp"}) {
    const fs::path folder = copy(from);
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      // Buffers are rank 0's.
      const bool is_read = name != "latest" && name != "reference.safetensors" &&
                           (name != deepspeed_model_file(3, 1) || from.parent_path() == frozen);
      if (!entry.is_regular_file() || !is_read) continue;
      const std::string whole = read_file(entry.path());
      for (std::size_t length = 0; length < whole.size(); length += 997) {
        put(entry.path(), whole.substr(0, length));
        EXPECT_NE(refusal(folder), "nothing was thrown") << name << " of " << length;
      }
      fuzz::run({whole},
                [&](std::string_view bytes) {
                  put(entry.path(), bytes);
                  index_of(folder);
                },
                {.iterations = 60, .longest = 1 << 20});
      put(entry.path(), whole);
    }
    EXPECT_EQ(refusal(folder), "nothing was thrown");
    fs::remove_all(folder);
  }
}

// Changed pickles whose checksums are right, so that the reader of the folder gets them.
TEST_F(ForeignFolder, ChangedPicklesAreErrorsOrFolders) {
  fuzz::Result all;
  for (const fs::path& from :
       {zero / "fp32_zero1", frozen / "fp32_zero2", frozen / "bf16_zero3", groups / "fp32_zero0",
        groups / "fp32_zero1", groups / "bf16_zero0", groups / "bf16_zero3"}) {
    const fs::path folder = copy(from);
    for (const auto& entry : fs::directory_iterator(folder / "global_step3")) {
      const std::string whole = read_file(entry.path());
      const ZipRecord pickle = pickle_of(whole);
      const auto result =
          fuzz::run({whole.substr(pickle.begin, pickle.bytes)},
                    [&](std::string_view bytes) {
                      put(entry.path(), with_pickle(whole, pickle, std::string(bytes)));
                      index_of(folder);
                    },
                    {.iterations = 80, .longest = 1 << 16});
      all.accepted += result.accepted;
      all.refused += result.refused;
      put(entry.path(), whole);
    }
    EXPECT_EQ(refusal(folder), "nothing was thrown");
    fs::remove_all(folder);
  }
  EXPECT_GT(all.accepted, 100);
  EXPECT_GT(all.refused, 500);
}

TEST(FuzzTensorArchive, DamageGivesAnErrorOrAnArchive) {
  const auto seed = [](const char* name) { return read_file(golden / "weights" / name); };
  const auto result = fuzz::run({seed("python.pt"), seed("negated.pt"), seed("one_tensor.pt")},
                                [](std::string_view bytes) {
                                  const FileBytes file("fuzz.pt", std::string(bytes));
                                  const TensorArchive archive(file);
                                  for (const PickledTensor& tensor : archive.pickle().tensors)
                                    archive.elements(tensor, "a tensor");
                                },
                                {.iterations = 5000, .longest = 1 << 16});
  EXPECT_GT(result.refused, 0);
}

// Without the checksum, which few changes pass.
TEST(FuzzPickleObjects, ListedClassesAreData) {
  constexpr std::array<std::string_view, 2> classes = {"a.B", "torch.Tensor"};
  using namespace std::string_literals;
  const std::string object =
      "\x80\x04\x8c\x01"
      "a\x8c\x01"
      "B\x93)\x81}(\x8c\x01xK\x01ub.";
  const std::string call =
      "\x80\x02"
      "ca\nB\nK\x01\x85R}b.";
  const auto result = fuzz::run({object, call}, [&](std::string_view bytes) {
    parse_pickle(bytes, "x", {.classes = classes, .newest_protocol = 5});
  });
  EXPECT_GT(result.accepted, 1);
  const Pickle pickle = parse_pickle(object, "x", {.classes = classes, .newest_protocol = 4});
  ASSERT_EQ(pickle.root.kind, PickledValue::Kind::Object);
  EXPECT_EQ(pickle.objects[0].type, "a.B");
  EXPECT_EQ(pickle.dicts[pickle.objects[0].state.place()].size(), 1u);
  EXPECT_THROW(parse_pickle(object, "x"), FormatError);
  EXPECT_THROW(parse_pickle(call, "x"), FormatError);
}

}  // namespace
}  // namespace trestle::checkpoint
