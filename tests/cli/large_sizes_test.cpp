#include <gmock/gmock.h>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

// Sizes beyond any machine or number type: the message names the request and hides libtorch's text.
namespace trestle {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LargeSizes : public ProgramTest {
 protected:
  static void refused(std::vector<std::string> words, const std::vector<std::string>& said) {
    words.insert(words.begin(), {"train", "small.toml", "--balance", "[]"});
    const Finished finished = run(words);
    EXPECT_THAT(finished.code, AnyOf(1, 2)) << join(words, " ");
    for (const std::string& word : said)
      EXPECT_THAT(finished.err, HasSubstr(word)) << join(words, " ");
    EXPECT_THAT(finished.err,
                AllOf(Not(HasSubstr("DefaultCPUAllocator")), Not(HasSubstr("Storage size")),
                      Not(HasSubstr("Exception raised")), Not(HasSubstr("Error code"))))
        << join(words, " ");
  }
};

TEST_F(LargeSizes, NamedForModels) {
  for (const char* devices : {"cpu", "virtual:2"})
    refused({"--width", "1000000", "--devices", devices},
            {"this machine is out of memory", "TiB", "with width = 1000000 in [model], batch = 4"});
  refused({"--width", "1000000", "--dry-run"}, {"TiB", "width = 1000000 in [model]"});
  refused({"--model.name", "resnet18", "--width", "1000000"}, {"TiB", "width = 1000000"});
  refused({"--channels", "1000000000"}, {"channel", "not 1000000000"});
  refused({"--width", "10000000000"}, {"'width' in [model]", "1000000000"});
}

TEST_F(LargeSizes, NamedForImages) {
  refused({"--image-width", "65500", "--image-height", "65500"},
          {"65500 x 65500 have 4290250000 pixels", "100000000"});
  write_file(folder_ / "random.toml",
             "[model]\nname = \"toy\"\nclasses = 5\n[data]\nname = \"random\"\ncount = 8\n"
             "shape = [1000000000, 1000000000, 1000000000]\n[train]\nbatch = 4\n");
  const Finished shape = run({"train", "random.toml"});
  EXPECT_EQ(shape.code, 2);
  EXPECT_THAT(shape.err, HasSubstr("[1000000000, 1000000000, 1000000000] has more numbers"));
  const Finished large = run({"train", "random.toml", "--shape", "1000000,1000000"});
  EXPECT_EQ(large.code, 1);
  EXPECT_THAT(large.err, HasSubstr("while reading example"));
  const Finished many = run(
      {"train", "random.toml", "--shape", "1000000", "--count", "10000000", "--batch", "10000000"});
  EXPECT_EQ(many.code, 1);
  EXPECT_THAT(many.err, AllOf(HasSubstr("TiB"), HasSubstr("batch = 10000000 in [train]")));
  EXPECT_THAT(large.err, AllOf(HasSubstr("TiB"), HasSubstr("shape = [1000000, 1000000] in [data]"),
                               Not(HasSubstr("DefaultCPUAllocator"))));
}

TEST_F(LargeSizes, NamedForBatches) {
  refused({"--batch", "1000000000"}, {"fewer than one batch of 1000000000"});
  refused({"--batch", "1000000000", "--dry-run"}, {"fewer than one batch of 1000000000"});
  const Finished all = run({"train", "small.toml", "--batch", "1000000000", "--drop-last", "false",
                            "--epochs", "1", "--name", "one_batch", "--quiet"});
  EXPECT_EQ(all.code, 0) << all.err;
  const Finished planned =
      run({"train", "small.toml", "--batch", "1000000000", "--drop-last", "false", "--dry-run"});
  EXPECT_EQ(planned.code, 0) << planned.err;
  refused({"--micro-batches", "1000000000"}, {"1000000000 micro-batches"});
}

TEST_F(LargeSizes, NamedForSchedules) {
  const Finished table =
      run({"view", "--schedule", "gpipe", "--stages", "32767", "--micro-batches", "1048576"});
  EXPECT_EQ(table.code, 2);
  EXPECT_THAT(table.err, AllOf(HasSubstr("32767 stages with 1048576 micro-batches"),
                               HasSubstr("Give at most 128 micro-batches.")));
  const Finished picture =
      run({"view", "--schedule", "gpipe", "--stages", "4", "--micro-batches", "100000"});
  EXPECT_EQ(picture.code, 2);
  EXPECT_THAT(picture.err, HasSubstr("a picture of 800000 cells is too large"));
}

}  // namespace
}  // namespace trestle
