// trestle schedules, and training by each schedule.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/schedule/csv.h"
#include "trestle/schedule/generate.h"

namespace trestle {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class SchedulesVerb : public ProgramTest {};

// "which schedule for 8 ranks, 32 micro-batches and 20 GiB?"
TEST_F(SchedulesVerb, AnswersWithOneCommandAndOnePicture) {
  const Finished done = run({"schedules", "--ranks", "8", "--micro-batches", "32", "--memory",
                             "20GiB", "--activations", "2GiB", "--weights", "4GiB", "--message",
                             "0.05", "--out", "best.svg", "--save-csv", "best.csv"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("8 ranks · 32 micro-batches · 20.0 GiB a rank"),
                              HasSubstr("times assumed"), HasSubstr("take auto"),
                              HasSubstr("the fastest fixed one")));
  EXPECT_THAT(done.out, AllOf(HasSubstr("zb_h2"), HasSubstr("does not fit")));
  EXPECT_THAT(read_file(folder_ / "best.svg"), HasSubstr("The fastest schedules of 8 ranks"));
  const auto table = schedule::parse_csv(read_file(folder_ / "best.csv"));
  EXPECT_EQ(table.rank_count(), 8);
  EXPECT_EQ(table.micro_batches, 32);
}

TEST_F(SchedulesVerb, PrintsJson) {
  const Finished done = run({"schedules", "--ranks", "4", "--micro-batches", "8", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  const auto json = nlohmann::json::parse(done.out);
  EXPECT_EQ(json["times"], "assumed");
  EXPECT_EQ(json["unit"], "slots");
  EXPECT_LE(json["best"]["step"], json["fixed"][0]["step"]);
  EXPECT_EQ(json["fixed"].size(), schedule::known_schedules().size());
}

TEST_F(SchedulesVerb, WritesAPage) {
  const Finished done =
      run({"schedules", "--ranks", "4", "--micro-batches", "8", "--out", "best.html"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("wrote best.html"));
  EXPECT_THAT(read_file(folder_ / "best.html"),
              AllOf(HasSubstr("<title>The fastest schedules of 4 ranks, 8 micro-batches</title>"),
                    HasSubstr("\"title\":\"zbv\""), HasSubstr("</html>")));
}

TEST_F(SchedulesVerb, MeasuresARecipeWhoseRunTakesTheTable) {
  const Finished made = run({"schedules", "small.toml", "--devices", "virtual:2", "--micro-batches",
                             "4", "--save-csv", "best.csv"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("layers measured"));
  const auto trained = [&](const std::string& schedule) {
    const Finished done =
        run({"train", "small.toml", "--loss", "cross_entropy", "--schedule", schedule, "--devices",
             "virtual:2", "--balance", "[]", "--micro-batches", "4", "--max-steps", "2", "--runs",
             "runs_" + schedule});
    EXPECT_EQ(done.code, 0) << done.err;
    const auto loss = done.out.find("loss ");
    return loss == std::string::npos ? std::string() : done.out.substr(loss, 10);
  };
  const std::string expected = trained("gpipe");
  EXPECT_THAT(expected, HasSubstr("loss 0"));
  EXPECT_EQ(trained("best.csv"), expected);
  for (const char* name : {"interleaved_1f1b", "zbv", "dualpipev"})
    EXPECT_EQ(trained(name), expected) << name;
}

TEST_F(SchedulesVerb, AutoSearchesWhenARunBegins) {
  const auto trained = [&](const std::string& runs, const std::vector<std::string>& flags) {
    std::vector<std::string> words = {
        "train", "small.toml",      "--loss", "cross_entropy", "--balance", "[]", "--max-steps",
        "2",     "--micro-batches", "4",      "--runs",        runs};
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished done = run(words);
    EXPECT_EQ(done.code, 0) << done.err;
    return done.out;
  };
  const auto loss = [](const std::string& out) { return out.substr(out.find("loss "), 10); };
  const std::string expected =
      loss(trained("plain", {"--schedule", "gpipe", "--devices", "virtual:2"}));
  EXPECT_THAT(expected, HasSubstr("loss 0"));
  for (const std::vector<std::string>& where :
       {std::vector<std::string>{"--devices", "virtual:2"}, {"--ranks", "threads:2"}}) {
    std::vector<std::string> flags = {"--schedule", "auto"};
    flags.insert(flags.end(), where.begin(), where.end());
    const std::string out = trained("runs_" + where[0], flags);
    EXPECT_EQ(loss(out), expected) << where[0];
    EXPECT_THAT(out, AllOf(HasSubstr("schedules simulated"), HasSubstr("a step on paper")));
  }
  const Finished dry = run({"train", "small.toml", "--loss", "cross_entropy", "--schedule", "auto",
                            "--devices", "virtual:2", "--balance", "[]", "--dry-run"});
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_THAT(dry.out, HasSubstr("schedules simulated"));
}

// The folder has the table, whatever becomes of the file.
TEST_F(SchedulesVerb, ARunKeepsItsTable) {
  write_file(folder_ / "mine.csv",
             schedule::to_csv(schedule::generate("zb_h1", {.stages = 2, .micro_batches = 4})));
  const Finished begun =
      run({"train", "small.toml", "--loss", "cross_entropy", "--schedule", "mine.csv", "--devices",
           "virtual:2", "--balance", "[]", "--micro-batches", "4", "--epochs", "1", "--runs",
           "kept", "--set", "pipeline.checkpoint=up4_conv"});
  ASSERT_EQ(begun.code, 0) << begun.err;
  EXPECT_THAT(run({"view", "kept/small"}).out, HasSubstr("I runs the whole backward of up4_conv"));
  std::filesystem::remove(folder_ / "mine.csv");
  const Finished resumed = run({"train", "--resume", "kept/small", "--epochs", "2"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("schedule  mine.csv"));
  // The table that another resumed run takes is kept too.
  write_file(folder_ / "other.csv",
             schedule::to_csv(schedule::generate("1f1b", {.stages = 2, .micro_batches = 4})));
  EXPECT_EQ(
      run({"train", "--resume", "kept/small", "--epochs", "3", "--schedule", "other.csv"}).code, 0);
  EXPECT_THAT(read_file(folder_ / "kept" / "small" / "recipe.toml"), HasSubstr("table = [\"0F0"));
  // A pipeline for other devices than the run's evaluates it.
  const Finished rated = run({"evaluate", "kept/small", "--devices", "virtual:1"});
  EXPECT_EQ(rated.code, 0) << rated.err;
  // Another schedule replaces the table.
  const Finished other =
      run({"train", "--resume", "kept/small", "--epochs", "4", "--schedule", "1f1b"});
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(other.out, HasSubstr("schedule  1f1b"));
}

// The recipe names the schedule, because `trestle balance` has no flag for it.
TEST_F(SchedulesVerb, SeveralStagesARankInEveryVerb) {
  write_recipe("vee", "balance = [13, 9]\nmicro_batches = 2",
               "micro_batches = 4\nschedule = \"zbv\"");
  write_file(folder_ / "vee.toml", read_file(folder_ / "vee.toml") + "loss = \"cross_entropy\"\n");
  const auto done = [](const std::vector<std::string>& words) {
    const Finished finished = run(words);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.out;
  };

  const auto cut = nlohmann::json::parse(done({"balance", "vee.toml", "--json"}))
                       .at("balance")
                       .get<std::vector<int>>();
  EXPECT_EQ(cut.size(), 4u);
  EXPECT_EQ(std::accumulate(cut.begin(), cut.end(), 0), 22);

  const std::string planned = done({"train", "vee.toml", "--dry-run", "--json"});
  const auto begin = planned.find("{\"event\":\"plan\"");
  ASSERT_NE(begin, std::string::npos) << planned;
  const auto plan = nlohmann::json::parse(planned.substr(begin, planned.find('\n', begin) - begin));
  EXPECT_EQ(plan.at("schedule"), "zbv");
  EXPECT_EQ(plan.at("balance").size(), 4u);
  std::vector<std::string> devices;
  for (const auto& stage : plan.at("stages"))
    devices.push_back(stage.at("device").get<std::string>());
  EXPECT_THAT(devices, ElementsAre("virtual:0", "virtual:1", "virtual:1", "virtual:0"));

  const auto train = [&](const std::string& name, const std::string& steps) {
    return done(
        {"train", "vee.toml", "--name", name, "--balance", join(cut, ","), "--max-steps", steps});
  };
  EXPECT_THAT(train("whole", "4"), HasSubstr("schedule  zbv"));
  train("stopped", "2");
  EXPECT_THAT(done({"train", "--resume", "runs/stopped", "--max-steps", "4"}),
              HasSubstr("schedule  zbv"));
  const auto losses = numbers("whole", "training_loss");
  const auto resumed = numbers("stopped", "training_loss");
  ASSERT_FALSE(losses.empty());
  ASSERT_FALSE(resumed.empty());
  EXPECT_EQ(resumed.back(), losses.back());
  EXPECT_EQ(read_file(folder_ / "runs/stopped/last/weights.safetensors"),
            read_file(folder_ / "runs/whole/last/weights.safetensors"));

  EXPECT_THAT(done({"view", "runs/whole", "--out", "vee.html"}), HasSubstr("wrote vee.html"));
  EXPECT_THAT(read_file(folder_ / "vee.html"),
              AllOf(HasSubstr("\"title\":\"simulated zbv\""), HasSubstr("\"title\":\"measured\""),
                    HasSubstr("[[0,3],[1,2]]")));

  EXPECT_THAT(done({"sweep", "vee.toml", "--over", "schedule=gpipe,zbv", "--runs", "1", "--steps",
                    "1", "--warm-up", "1"}),
              AllOf(HasSubstr("1/2  pipeline.schedule = gpipe"),
                    HasSubstr("2/2  pipeline.schedule = zbv"), HasSubstr(" per step")));
}

TEST_F(SchedulesVerb, NamesMistakes) {
  const auto refused = [&](const std::vector<std::string>& words) {
    const Finished done = run(words);
    EXPECT_EQ(done.code, 2) << done.out;
    return done.err;
  };
  EXPECT_THAT(refused({"schedules", "--memory", "20GiB"}), HasSubstr("--activations"));
  EXPECT_THAT(refused({"schedules", "--costs", "1,2"}), HasSubstr("give F,I,W"));
  EXPECT_THAT(refused({"schedules", "--costs", "1,x,1"}), HasSubstr("'x' is not a time"));
  EXPECT_THAT(refused({"schedules", "--stages-per-rank", "1,0"}), HasSubstr("'0' is not a number"));
  EXPECT_THAT(refused({"schedules", "--devices", "virtual:2"}), HasSubstr("--devices"));
  EXPECT_THAT(refused({"schedules", "small.toml", "--ranks", "2"}), HasSubstr("--ranks"));
  EXPECT_THAT(refused({"schedules", "--out", "best.png"}), HasSubstr(".svg"));
  EXPECT_THAT(refused({"schedules", "--out", "a.svg", "--save-csv", "./a.svg"}),
              HasSubstr("name one file"));
  EXPECT_THAT(refused({"view", "--schedule", "zbv", "--out", "a.svg", "--save-csv", "a.svg"}),
              HasSubstr("name one file"));
  EXPECT_THAT(refused({"view", "--schedule", "zbv", "--stages", "4", "--stages-per-rank", "1"}),
              HasSubstr("It has 2"));
  EXPECT_THAT(
      refused({"plan", "--gpt", "layers=4,hidden=64,heads=4,sequence=32,vocabulary=128",
               "--machine", std::string(TRESTLE_SOURCE_DIR) + "/machines/a100-8-per-node.toml",
               "--devices", "8", "--batch", "8", "--keep", "schedule=zbv"}),
      HasSubstr("whole backwards, unlike zbv"));
  EXPECT_THAT(refused({"train", "small.toml", "--loss", "cross_entropy", "--schedule", "zbv",
                       "--devices", "virtual:2", "--balance", "11,11"}),
              AllOf(HasSubstr("2 devices of 2 stages"), HasSubstr("4 entries")));
  EXPECT_THAT(refused({"train", "small.toml", "--loss", "cross_entropy", "--schedule", "dualpipev",
                       "--devices", "virtual:2", "--balance", "[]", "--micro-batches", "3"}),
              HasSubstr("cannot have 3 micro-batches for 4 stages"));
  write_recipe("auto", "micro_batches = 2", "micro_batches = 2\nschedule = \"auto\"");
  EXPECT_THAT(refused({"balance", "auto.toml"}), HasSubstr("schedules RECIPE --save-csv"));
  EXPECT_THAT(refused({"train", "small.toml", "--loss", "cross_entropy", "--schedule", "auto",
                       "--devices", "virtual:2", "--balance", "[]", "--recompute", "always,never"}),
              HasSubstr("schedule = \"auto\" has not chosen the stages yet"));
  EXPECT_THAT(refused({"train", "small.toml", "--loss", "cross_entropy", "--schedule", "auto",
                       "--devices", "virtual:2", "--balance", "8,7,7"}),
              HasSubstr("has 3 stages for 2 ranks"));
  EXPECT_THAT(refused({"train", "small.toml", "--loss", "cross_entropy", "--schedule", "auto",
                       "--devices", "virtual:2x1MiB", "--balance", "[]"}),
              HasSubstr("no schedule fits the memory of the devices"));
  EXPECT_THAT(refused({"train", "small.toml", "--loss", "cross_entropy", "--schedule", "none.csv"}),
              HasSubstr("there is no file none.csv"));
  write_file(folder_ / "bad.csv", "0F0,0I0\n1F0,1B0\n");
  EXPECT_THAT(refused({"train", "small.toml", "--loss", "cross_entropy", "--schedule", "bad.csv",
                       "--devices", "virtual:2"}),
              AllOf(HasSubstr("bad.csv"), HasSubstr("0I0")));
  write_file(folder_ / "three.csv",
             schedule::to_csv(schedule::generate("1f1b", {.stages = 3, .micro_batches = 4})));
  EXPECT_THAT(refused({"train", "small.toml", "--loss", "cross_entropy", "--schedule", "three.csv",
                       "--devices", "virtual:2", "--balance", "[]", "--micro-batches", "4"}),
              HasSubstr("a table of 3 ranks, and 2 devices are given"));
}

}  // namespace
}  // namespace trestle
