#include <gmock/gmock.h>

#include "tests/apps/program.h"
#include "trestle/base/files.h"
#include "trestle/plan/layer_profile.h"

namespace trestle {
namespace {

using testing::HasSubstr;

class BalanceVerb : public ProgramTest {};

TEST_F(BalanceVerb, PrintsEachLayerAndTheCut) {
  const Finished done = run({"balance", "small.toml", "--save", "layers.json"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("unet · 22 layers"));
  EXPECT_THAT(done.out, HasSubstr("── stage 1 · "));
  EXPECT_THAT(done.out, HasSubstr("balance = ["));
  EXPECT_EQ(plan::layer_profile_from_json(read_file(folder_ / "layers.json")).layers.size(), 22u);
}

TEST_F(BalanceVerb, ByTimeBySizeAndWithinBudgets) {
  for (const std::string by : {"time", "size", "both"}) {
    const Finished done =
        run({"balance", "small.toml", "--by", by, "--json", "--devices", "virtual:3x64MiB"});
    EXPECT_EQ(done.code, 0) << done.err;
    EXPECT_THAT(done.out, HasSubstr("{\"balance\": ["));
  }
  const Finished small = run({"balance", "small.toml", "--devices", "virtual:2x1KiB"});
  EXPECT_EQ(small.code, 2);
  EXPECT_THAT(small.err, HasSubstr("no cut into 2 stages fits the budgets: the smallest needs"));
  EXPECT_EQ(run({"balance", "small.toml", "--by", "luck"}).code, 2);
  EXPECT_EQ(run({"balance"}).code, 2);
}

}  // namespace
}  // namespace trestle
