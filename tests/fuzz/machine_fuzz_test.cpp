#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "tests/fuzz/fuzz.h"
#include "tests/plan/calibrated_machine.h"
#include "trestle/base/files.h"
#include "trestle/plan/gpt/planned_gpt.h"
#include "trestle/plan/machine/machine.h"
#include "trestle/plan/search/plan_report.h"
#include "trestle/plan/verify/measured_line.h"
#include "trestle/plan/verify/residuals.h"

namespace trestle::plan {
namespace {

// An accepted file is written and read again without a difference.
TEST(Fuzz, Machines) {
  const std::string shipped =
      read_text_file(std::string(TRESTLE_SOURCE_DIR) + "/machines/a100-8-per-node.toml");
  const auto result =
      fuzz::run({shipped,
                 "[[block]]\nhidden = 1\nheads = 1\nsequence = 1\nmicro_batch = 1\ntensor = 1\n"
                 "seconds = 0.5\nis = \"measured\"\nfrom = \"x\"\n"},
                [](std::string_view text) {
                  const std::string written = to_toml(parse_machine(text, "fuzz.toml"));
                  EXPECT_EQ(to_toml(parse_machine(written, "again.toml")), written);
                },
                {.iterations = 5000, .longest = 16384});
  EXPECT_GT(result.accepted, 50);
  EXPECT_GT(result.refused, 1000);
}

// An accepted file is written and read again without a difference, and gives a range.
TEST(Fuzz, Residuals) {
  const std::string line =
      R"({"model":"unet","strategy":"tensor 2","machine":"CPU, 2 cores","version":"1",)"
      R"("predicted_seconds":0.25,"measured_seconds":0.5,"spread":0.01})"
      "\n";
  const auto result = fuzz::run({line, line + line}, [](std::string_view text) {
    const auto residuals = parse_residuals(text, "fuzz.jsonl");
    const std::string written = to_json_lines(residuals);
    EXPECT_EQ(to_json_lines(parse_residuals(written, "again.jsonl")), written);
    if (!residuals.empty()) {
      EXPECT_GE(spread_of(residuals).value, 0);
    }
  });
  EXPECT_GT(result.accepted, 50);
  EXPECT_GT(result.refused, 1000);
}

TEST(Fuzz, MeasuredLines) {
  const std::string line = R"({"event":"measured","seconds":[0.5,0.25],"optimizer_seconds":0.01,)"
                           R"("peaks":[{"device":"virtual:0","measured_bytes":4096}]})";
  const auto result =
      fuzz::run({line, "[0] " + line, R"({"event":"note"})"},
                [](std::string_view text) { EXPECT_GE(measured_run_of(text).seconds, 0); });
  EXPECT_GT(result.accepted, 50);
  EXPECT_GT(result.refused, 1000);
}

// The same for the files of trestle calibrate. Their tables give a time for any size and group.
TEST(Fuzz, CalibratedMachines) {
  const std::string calibrated = to_toml(calibrated_machine());
  // Three of seven seeds are a whole file: most inputs that are accepted come from one.
  const auto result = fuzz::run(
      {calibrated, calibrated, calibrated, calibrated.substr(calibrated.find("\n[measured_on]")),
       "kind = \"send\"\nover = \"threads\"\nreach = \"between\"\nspread = [0.1]\n",
       "[fixed]\ncontext_memory = { value = \"1GiB\", is = \"measured\", from = \"x\", spread = "
       "0.1 }\n",
       "shape = \"thin\"\ntype = \"int8\"\npath = \"on_device\"\ndate = 2000-02-29\ngpu = \"x\"\n"},
      [](std::string_view text) {
        const Machine machine = parse_machine(text, "fuzz.toml");
        const std::string written = to_toml(machine);
        EXPECT_EQ(to_toml(parse_machine(written, "again.toml")), written);
        for (const MessageTable& table : machine.messages)
          for (const double bytes : {1.0, 5000.0, 1e12})
            for (const int ranks : {2, 3, 1000}) {
              const auto seconds = message_seconds(machine.messages, {.kind = table.kind,
                                                                      .over = table.over,
                                                                      .reach = table.reach,
                                                                      .ranks = ranks,
                                                                      .bytes = bytes});
              EXPECT_TRUE(seconds && std::isfinite(*seconds) && *seconds > 0);
            }
      },
      {.iterations = 5000, .longest = 16384});
  EXPECT_GT(result.accepted, 50);
  EXPECT_GT(result.refused, 1000);
}

// An accepted model and degrees have a plan, or a reason why there is none.
TEST(Fuzz, GptPlans) {
  const Machine machine =
      read_machine(std::string(TRESTLE_SOURCE_DIR) + "/machines/a100-8-per-node.toml");
  int planned = 0;
  const auto result = fuzz::run(
      {"layers=4,hidden=64,heads=4,sequence=32,vocabulary=128|8|16|tensor=2,level=1",
       "layers=6,hidden=96,heads=6,sequence=8,vocabulary=600,tied=no|12|6|pipeline=3,chunks=2",
       "layers=1,hidden=8,heads=1,sequence=8,vocabulary=8|7|14|recompute=all,data=7"},
      [&](std::string_view bytes) {
        const auto parts = split(bytes, '|');
        if (parts.size() != 4) throw UsageError("not four parts");
        const PlannedGpt model(parse_gpt(parts[0]), machine);
        const auto number = [](const std::string& word) {
          return std::clamp(std::atoi(word.c_str()), 0, 64);
        };
        const PlanRequest request{.devices = number(parts[1]),
                                  .batch = number(parts[2]),
                                  .kept = parse_kept({parts[3]}),
                                  .top = 2};
        const PlanResult found = find_plans(model, machine, request);
        EXPECT_FALSE(plan_report({model, machine, request, found}, 80).empty());
        EXPECT_FALSE(plan_json({model, machine, request, found}).empty());
        ++planned;
      },
      {.iterations = 4000});
  EXPECT_GT(result.accepted, 20);
  EXPECT_EQ(result.accepted, planned);
  EXPECT_GT(result.refused, 500);
}

}  // namespace
}  // namespace trestle::plan
