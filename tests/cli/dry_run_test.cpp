#include <gmock/gmock.h>

#include "tests/cli/program.h"

// A dry run refuses what the run refuses.
namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class DryRun : public ProgramTest {};

TEST_F(DryRun, RefusesWhatRunRefuses) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> refused = {
      {{"--frozen", "norn"}, "'frozen' in [optimizer]: no layer or parameter is named 'norn'"},
      {{"--frozen", "*"}, "nothing is left to train"},
      {{"--rate-factors", "in"}, "\"pattern=factor\""},
      {{"--no-weight-decay", "nothing"}, "no layer or parameter is named 'nothing'"},
      {{"--weights", "none.safetensors"}, "none.safetensors: there is no such file"},
      {{"--batch", "1000"}, "examples to train on, fewer than one batch of 1000"},
      {{"--validation", "0", "--plateau", "true"}, "needs the validation metric"},
      {{"--validation", "0", "--patience", "3"}, "needs the validation metric"},
  };
  for (const auto& [flags, words] : refused) {
    std::vector<std::string> arguments = {"train", "small.toml", "--name", "refused"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Finished trained = run(arguments);
    EXPECT_EQ(trained.code, 2) << words;
    arguments.emplace_back("--dry-run");
    const Finished planned = run(arguments);
    EXPECT_EQ(planned.code, 2) << words;
    EXPECT_EQ(planned.err, trained.err);
    EXPECT_THAT(planned.err, HasSubstr(words));
  }
  EXPECT_FALSE(fs::exists(folder_ / "runs/refused"));
}

}  // namespace
}  // namespace trestle
