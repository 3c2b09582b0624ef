#include "trestle/checkpoint/files/pickle/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fuzz/fuzz.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/pickle/pickled_state_dict.h"

namespace trestle::checkpoint {
namespace {

using namespace std::string_literals;
using testing::HasSubstr;

// Fragments of pickles, in the notation of pickletools.
const std::string begin = "\x80\x02";
const std::string storage_of_4 =
    "(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0"s
    "0X\x03\0\0\0cpuK\x04tQ"s;
const std::string rebuild = "ctorch._utils\n_rebuild_tensor_v2\n";
const std::string hooks =
    "\x89"
    "ccollections\nOrderedDict\n)R";

// A tensor of the storage of 4: `offset`, `shape` and `strides` are opcodes.
std::string tensor(const std::string& offset, const std::string& shape,
                   const std::string& strides) {
  return rebuild + "(" + storage_of_4 + offset + shape + strides + hooks + "tR";
}
const std::string good_tensor = tensor("K\0"s, "K\x02K\x02\x86", "K\x02K\x01\x86");
const std::string good_pickle = begin + "}X\x01\0\0\0a"s + good_tensor + "s.";

std::string pickle_error(const std::string& pickle) {
  try {
    find_state_dict(parse_pickle(pickle, "x.pt"), "x.pt");
  } catch (const FormatError& error) {
    return error.what();
  }
  return "it was accepted";
}

// The opcodes of the integer 2^62.
const std::string huge = "\x8a\x08\0\0\0\0\0\0\0\x40"s;

TEST(Pickle, ReadsADictOfTensors) {
  const Pickle pickle = parse_pickle(good_pickle, "x.pt");
  const PickledStateDict found = find_state_dict(pickle, "x.pt");
  ASSERT_EQ(found.tensors.size(), 1u);
  EXPECT_EQ(found.tensors[0].name, "a");
  const PickledTensor& read = pickle.tensors[found.tensors[0].tensor];
  EXPECT_EQ(read.shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(read.strides, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(pickle.storages[read.storage].dtype, "F32");
  EXPECT_EQ(pickle.storages[read.storage].elements, 4u);
}

TEST(Pickle, RoundTrips) {
  const std::string bytes = format_pickle({{"a.weight", "F32", {2, 3}},
                                           {"steps", "I64", {}},
                                           {"none", "BF16", {0, 4}},
                                           {"large", "U8", {std::int64_t{1} << 40}}});
  const Pickle pickle = parse_pickle(bytes, "x.pt");
  const PickledStateDict found = find_state_dict(pickle, "x.pt");
  ASSERT_EQ(found.tensors.size(), 4u);
  EXPECT_EQ(found.tensors[0].name, "a.weight");
  EXPECT_EQ(pickle.tensors[0].strides, (std::vector<std::int64_t>{3, 1}));
  EXPECT_EQ(pickle.storages[3].elements, std::uint64_t{1} << 40);
  EXPECT_EQ(pickle.storages[2].dtype, "BF16");
}

TEST(Pickle, RejectsOtherObjectsAndNamesThem) {
  EXPECT_THAT(pickle_error(begin + "cposix\nsystem\nX\x04\0\0\0true\x85R."s),
              HasSubstr("contains 'posix.system'"));
  EXPECT_THAT(pickle_error(begin + "cbuiltins\neval\n."), HasSubstr("contains 'builtins.eval'"));
  EXPECT_THAT(pickle_error(begin + "ctorch._utils\n_rebuild_qtensor\n."),
              HasSubstr("contains 'torch._utils._rebuild_qtensor'"));
  EXPECT_THAT(pickle_error(begin + "ctorch\nComplexFloatStorage\n."),
              HasSubstr("ComplexFloatStorage"));
  // A call of a non-function, a build on a non-dict, an instance, a registered extension.
  EXPECT_THAT(pickle_error(begin + "K\x01)R."), HasSubstr("calls a value that is not a function"));
  EXPECT_THAT(pickle_error(begin + "K\x01}b."), HasSubstr("a value that is not a dict"));
  EXPECT_THAT(pickle_error(begin + "(iposix\nsystem\n."), HasSubstr("opcode 105"));
  EXPECT_THAT(pickle_error(begin + "\x82\x01."), HasSubstr("opcode 130"));
  EXPECT_THAT(pickle_error("\x80\x04}."), HasSubstr("protocol 4"));
}

TEST(Pickle, TensorsMustFitIntoTheirStorage) {
  const auto one = [](const std::string& made) {
    return pickle_error(begin + "}X\x01\0\0\0a"s + made + "s.");
  };
  EXPECT_EQ(one(good_tensor), "it was accepted");
  EXPECT_EQ(one(tensor("K\x04", "K\0\x85"s, "K\x01\x85")), "it was accepted")
      << "empty, at the end";
  EXPECT_THAT(one(tensor("K\x01", "K\x02K\x02\x86", "K\x02K\x01\x86")),
              HasSubstr("does not fit into its storage of 4"));
  EXPECT_THAT(one(tensor("K\0"s, "K\x05\x85", "K\x01\x85")), HasSubstr("does not fit"));
  EXPECT_THAT(one(tensor("K\x05", "K\0\x85"s, "K\x01\x85")), HasSubstr("does not fit"));
  EXPECT_THAT(one(tensor("K\0"s, "K\x02\x85", huge + "\x85")), HasSubstr("does not fit"));
  EXPECT_THAT(one(tensor("K\0"s, "K\x03\x85", huge + "\x85")), HasSubstr("larger than any memory"));
  EXPECT_THAT(one(tensor("K\0"s, huge + huge + "\x86", "K\0K\0\x86"s)),
              HasSubstr("larger than any memory"));
  EXPECT_THAT(one(tensor("K\0"s, "K\0"s + huge + "\x86", "K\0K\0\x86"s)),
              HasSubstr("larger than any memory"));
  EXPECT_THAT(one(tensor("K\0"s, "J\xff\xff\xff\xff\x85", "K\x01\x85")),
              HasSubstr("not a tuple of sizes"));
  EXPECT_THAT(one(tensor("K\x04", "K\x02\x85", "J\xff\xff\xff\xff\x85")),
              HasSubstr("not a tuple of sizes"));
  EXPECT_THAT(one(tensor("J\xff\xff\xff\xff", "K\x02\x85", "K\x01\x85")),
              HasSubstr("not built as"));
  EXPECT_THAT(one(tensor("K\0"s, "K\x02\x85", ")")),
              HasSubstr("a different number of strides than sizes"));
  EXPECT_THAT(one(tensor("K\0"s, "X\x01\0\0\0z\x85"s, "K\x01\x85")), HasSubstr("tuple of sizes"));
}

TEST(Pickle, FlagsOfATensorAreAppliedOrRejected) {
  const auto with = [](const std::string& metadata, const std::string& storage = storage_of_4) {
    return begin + "}X\x01\0\0\0a"s + rebuild + "(" + storage + "K\0"s + "K\x04\x85" + "K\x01\x85" +
           hooks + metadata + "tRs.";
  };
  const std::string neg = "}X\x03\0\0\0neg"s, conj = "}X\x04\0\0\0conj"s;
  EXPECT_TRUE(parse_pickle(with(neg + "\x88s"), "x.pt").tensors[0].negated);
  EXPECT_FALSE(parse_pickle(with(neg + "\x89s"), "x.pt").tensors[0].negated);
  EXPECT_FALSE(parse_pickle(with(conj + "\x89s"), "x.pt").tensors[0].negated);
  EXPECT_FALSE(parse_pickle(with("}"), "x.pt").tensors[0].negated);
  EXPECT_THAT(pickle_error(with(conj + "\x88s")), HasSubstr("unsupported flag 'conj'"));
  EXPECT_THAT(pickle_error(with(neg + "K\x01s")), HasSubstr("unsupported flag 'neg'"));
  EXPECT_THAT(pickle_error(with("N")), HasSubstr("flags are not a dict"));
  const std::string bools =
      "(X\x07\0\0\0storagectorch\nBoolStorage\nX\x01\0\0\0"s
      "0X\x03\0\0\0cpuK\x04tQ"s;
  EXPECT_THAT(pickle_error(with(neg + "\x88s", bools)), HasSubstr("bools"));
}

TEST(Pickle, AStorageHasOneDescription) {
  std::string other = storage_of_4;
  other[other.size() - 3] = 5;
  EXPECT_THAT(pickle_error(begin + "(" + storage_of_4 + other + "t."),
              HasSubstr("two different descriptions"));
  other = storage_of_4;
  other.replace(other.find("Float"), 5, "Int");
  EXPECT_THAT(pickle_error(begin + "(" + storage_of_4 + other + "t."),
              HasSubstr("two different descriptions"));
}

TEST(Pickle, TheMachineNeverPopsFromAnEmptyStack) {
  for (const char* ops : {".",
                          "\x85.",
                          "t.",
                          "a.",
                          "Ka.",
                          "]a.",
                          "e.",
                          "(e.",
                          "s.",
                          "}s.",
                          "u.",
                          "}(K\x01u.",
                          "q.",
                          "q\x01.",
                          "h\x01.",
                          "j\x01\x02\x03\x04.",
                          "R.",
                          "Q.",
                          "b.",
                          "KK.",
                          "(.",
                          "K\x01K\x01.",
                          "X\xff\xff\xff\xff",
                          "\x8a\xff",
                          "c",
                          "cab",
                          "cab\nc",
                          "G",
                          "r\x01",
                          "K\x01(s.",
                          "K\x01(\x85."})
    EXPECT_THAT(pickle_error(begin + ops), testing::StartsWith("x.pt: ")) << fuzz::literal(ops);
  for (std::size_t length = 0; length < good_pickle.size(); ++length)
    EXPECT_NE(pickle_error(good_pickle.substr(0, length)), "it was accepted") << length;
  EXPECT_THAT(pickle_error(good_pickle + "N"), HasSubstr("bytes after the pickle"));
}

TEST(Pickle, CyclesAndDepthAreHandled) {
  // A dict that is an entry of itself, and a list that contains itself.
  EXPECT_EQ(pickle_error(begin + "}q\1X\x01\0\0\0ah\1sX\x01\0\0\0b"s + good_tensor + "s."),
            "it was accepted");
  EXPECT_THAT(pickle_error(begin + "]q\1h\1a."), HasSubstr("no dict of tensors"));
  // Lists a million deep, and tuples.
  std::string deep(1'000'000, '(');
  EXPECT_THAT(pickle_error(begin + deep + std::string(1'000'000, 't') + "."),
              HasSubstr("no dict of tensors"));
  // A billion laughs: each list contains the previous one twice.
  std::string laughs = begin + "]q\1";
  for (int i = 0; i < 200; ++i) laughs += "](h\1h\1eq\1";
  EXPECT_THAT(pickle_error(laughs + std::string(200, 'a') + "."), HasSubstr("no dict of tensors"));
  EXPECT_THAT(pickle_error(begin + std::string(most_values + 1, ')') + "."), HasSubstr("values"));
  EXPECT_THAT(pickle_error(begin + std::string(longest_pickle, 'N') + "."),
              HasSubstr("more than the limit"));
}

TEST(Pickle, FindsTheOnlyDictOfTensors) {
  const auto entry = [](const std::string& key, const std::string& value) {
    return "X" + std::string(1, static_cast<char>(key.size())) + "\0\0\0"s + key + value + "s";
  };
  const std::string dict = "}" + entry("w", good_tensor);
  EXPECT_EQ(pickle_error(begin + "}" + entry("model", dict) + entry("epoch", "K\1") +
                         entry("best", good_tensor) + "."),
            "it was accepted");
  EXPECT_THAT(pickle_error(begin + "}" + entry("model", dict) + entry("ema", dict) + "."),
              testing::AllOf(HasSubstr("several dicts of tensors: 'model', 'ema'"),
                             HasSubstr("torch.load(file)['model']")));
  EXPECT_THAT(pickle_error(begin + "}" + entry("epoch", "K\1") + entry("args", "}") + "."),
              HasSubstr("has no tensors; its keys are: 'epoch', 'args'"));
  EXPECT_THAT(pickle_error(begin + dict + entry("w", good_tensor) + "."), HasSubstr("'w' twice"));
  EXPECT_THAT(pickle_error(begin + dict + "K\1" + good_tensor + "s."), HasSubstr("the key 1"));
  const std::string with_state = begin + dict + entry("_extra_state", "N") + ".";
  EXPECT_THAT(find_state_dict(parse_pickle(with_state, "x"), "x").others,
              testing::ElementsAre("_extra_state"));
}

TEST(Pickle, AnyBytesEitherReadOrThrowFormatError) {
  const std::string written = format_pickle({{"a", "F32", {2, 3}}, {"b", "I64", {}}});
  const auto result = fuzz::run({good_pickle, written}, [](std::string_view bytes) {
    const Pickle pickle = parse_pickle(bytes, "fuzz");
    for (const PickledTensor& read : pickle.tensors) {
      std::int64_t last = read.offset;
      bool empty = false;
      for (std::size_t i = 0; i < read.shape.size(); ++i) {
        empty = empty || read.shape[i] == 0;
        last += (read.shape[i] - 1) * read.strides[i];
      }
      EXPECT_TRUE(empty ||
                  static_cast<std::uint64_t>(last) < pickle.storages[read.storage].elements);
    }
    find_state_dict(pickle, "fuzz");
  });
  EXPECT_GT(result.accepted, 0);
  EXPECT_GT(result.refused, 0);
}

}  // namespace
}  // namespace trestle::checkpoint
