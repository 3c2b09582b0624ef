// trestle schedules, and training by each schedule.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/terminal.h"
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

// A measured step names the schedule that it ran.
TEST_F(SchedulesVerb, MeasuredStepsNameTheScheduleOfASearch) {
  write_recipe("searched", "micro_batches = 2", "micro_batches = 4\nschedule = \"auto\"");
  const Finished one = run({"train", "searched.toml", "--devices", "virtual:2", "--measure", "1"});
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, HasSubstr(" · balance ["));
  const Finished swept =
      run({"sweep", "searched.toml", "--set", "devices.use=virtual:2", "--over", "micro_batches=4",
           "--runs", "1", "--steps", "1", "--warm-up", "1", "--out", "swept"});
  ASSERT_EQ(swept.code, 0) << swept.err;
  const auto point =
      nlohmann::json::parse(read_file(folder_ / "swept" / "sweep.json"))["points"][0];
  EXPECT_FALSE(point.at("schedule").get<std::string>().empty());
  EXPECT_THAT(read_file(folder_ / "swept" / "sweep.csv"), HasSubstr(",error,schedule\n"));
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

// Another measurement may cut the model elsewhere, and the last bits of a step depend on the cut.
TEST_F(SchedulesVerb, AResumedRunKeepsItsMeasuredCut) {
  write_recipe("small_cut", "micro_batches = 2", "micro_batches = 4\nschedule = \"zbv\"");
  const auto trained = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "train");
    const Finished done = run(words);
    EXPECT_EQ(done.code, 0) << done.err;
    return done.out;
  };
  const auto cut_in = [](const std::string& out) {
    const auto begin = out.find("cut [");
    return out.substr(begin, out.find(']', begin) - begin);
  };
  const std::string begun =
      trained({"small_cut.toml", "--loss", "cross_entropy", "--balance", "[]", "--devices",
               "virtual:2", "--max-steps", "1", "--name", "cut"});
  EXPECT_THAT(begun, HasSubstr("(balance: measured)"));
  // The state of the checkpoint has a cut that no measurement would choose.
  const std::filesystem::path index = folder_ / "runs/cut/last/index.json";
  std::string state = read_file(index);
  for (const auto& [name, layers] : {std::pair("layers_of_stage_0", "19.0"),
                                     {"layers_of_stage_1", "1.0"},
                                     {"layers_of_stage_2", "1.0"},
                                     {"layers_of_stage_3", "1.0"}}) {
    const auto at = state.find(name);
    ASSERT_NE(at, std::string::npos) << name;
    const auto colon = state.find(':', at);
    state.replace(colon + 2, state.find_first_of(",\n", colon) - colon - 2, layers);
  }
  write_file(index, state);
  const std::string resumed = trained({"--resume", "runs/cut", "--max-steps", "2"});
  EXPECT_THAT(resumed, HasSubstr("cut [19, 1, 1, 1] (balance: resumed)"));
  const std::string moved =
      trained({"--resume", "runs/cut", "--max-steps", "3", "--devices", "virtual:2x900MiB"});
  EXPECT_THAT(moved, AllOf(HasSubstr("(balance: measured)"), HasSubstr("was [19, 1, 1, 1]")));
  const std::string fewer = trained({"--resume", "runs/cut", "--max-steps", "4", "--devices",
                                     "virtual:1", "--schedule", "gpipe"});
  EXPECT_THAT(fewer, HasSubstr("cut [22] (balance: measured)"));
  EXPECT_NE(cut_in(moved), cut_in(fewer));
}

// All layers of a balance exist, whatever reads it first.
TEST_F(SchedulesVerb, RefusesABalanceOfMoreLayersThanTheModelHas) {
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--dry-run"},
                                                {"--dry-run", "--schedule", "zb_h1"},
                                                {"--dry-run", "--schedule", "auto"},
                                                {"--schedule", "auto"},
                                                {"--measure", "1"}}) {
    std::vector<std::string> words = {"train",     "small.toml", "--loss",    "cross_entropy",
                                      "--balance", "13,10",      "--devices", "virtual:2"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished done = run(words);
    EXPECT_EQ(done.code, 2) << done.out;
    EXPECT_THAT(done.err, AllOf(HasSubstr("balance [13, 10]"), HasSubstr("22"))) << flags.back();
  }
}

// A run keeps its table, which is for one number of ranks.
TEST_F(SchedulesVerb, ATableForOtherRanksIsRefusedWithTheWayOut) {
  write_file(folder_ / "mine.csv",
             schedule::to_csv(schedule::generate("zb_h1", {.stages = 2, .micro_batches = 4})));
  const std::vector<std::string> words = {
      "train", "small.toml",      "--loss", "cross_entropy", "--schedule", "mine.csv", "--balance",
      "[]",    "--micro-batches", "4",      "--max-steps",   "1"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  };
  ASSERT_EQ(with({"--devices", "virtual:2", "--name", "table"}).code, 0);
  const Finished refused =
      run({"train", "--resume", "runs/table", "--max-steps", "2", "--devices", "virtual:3"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("table of 2 ranks, and 3 devices"),
                                 HasSubstr("--schedule auto searches one")));
  const Finished each =
      run({"train", "--resume", "runs/table", "--max-steps", "2", "--stages-per-rank", "1"});
  EXPECT_EQ(each.code, 2);
  EXPECT_THAT(each.err,
              HasSubstr("'stages_per_rank' in [pipeline] has no effect beside the table"));
  const Finished other = run({"train", "--resume", "runs/table", "--max-steps", "2", "--devices",
                              "virtual:3", "--schedule", "1f1b"});
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(other.out,
              AllOf(HasSubstr("pipeline.schedule = \"1f1b\""), Not(HasSubstr("pipeline.table"))));
  // A table for a pipeline has no action that the pipeline adds: a dry run says so too.
  write_file(folder_ / "step.csv", "0F0,0B0,0STEP\n1F0,1B0,1STEP\n");
  for (const char* flag : {"--dry-run", "--quiet"}) {
    const Finished done =
        run({"train", "small.toml", "--loss", "cross_entropy", "--schedule", "step.csv",
             "--balance", "[]", "--micro-batches", "1", "--devices", "virtual:2", flag});
    EXPECT_EQ(done.code, 2) << flag;
    EXPECT_THAT(done.err, AllOf(HasSubstr("step.csv"), HasSubstr("takes no 0STEP from a table")));
  }
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

// The table stays, for a person to read, and no file is left for a script to take.
TEST_F(SchedulesVerb, EndsWithAnErrorIfNothingFits) {
  const std::vector<std::string> words = {"schedules", "--ranks",       "2",   "--memory",
                                          "1B",        "--activations", "1GiB"};
  const auto failed = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    const Finished done = run(all);
    EXPECT_EQ(done.code, 2) << done.out;
    EXPECT_THAT(done.err, AllOf(HasSubstr("no schedule fits the memory of the ranks"),
                                HasSubstr("model_parallel needs least, 1.0 GiB on rank 0")));
    return done.out;
  };
  EXPECT_THAT(failed({}), HasSubstr("does not fit"));
  EXPECT_THAT(failed({"--save-csv", "none.csv", "--out", "none.svg"}), Not(HasSubstr("wrote")));
  for (const char* file : {"none.csv", "none.svg"})
    EXPECT_FALSE(std::filesystem::exists(folder_ / file)) << file;
  const std::vector<std::string> lines = split(trim(failed({"--json"})), '\n');
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_TRUE(nlohmann::json::parse(lines[0])["best"].is_null());
  EXPECT_EQ(nlohmann::json::parse(lines[1])["error"]["exit_code"], 2);
}

TEST_F(SchedulesVerb, RefusesMemoryOfNoBytes) {
  for (const char* memory : {"0", "0GiB"}) {
    const Finished done = run({"schedules", "--memory", memory, "--activations", "1GiB"});
    EXPECT_EQ(done.code, 2) << done.out;
    EXPECT_THAT(done.err, AllOf(HasSubstr("a rank needs at least one byte"),
                                HasSubstr("Leave it out for no limit.")));
  }
  const Finished measured = run({"schedules", "small.toml", "--memory", "0"});
  EXPECT_EQ(measured.code, 2) << measured.out;
  EXPECT_THAT(measured.err, HasSubstr("Leave it out for the budgets of the recipe's devices."));
}

// Sentences fit. The table is as wide as its columns need.
TEST_F(SchedulesVerb, SentencesFitTheTerminal) {
  for (const int columns : {40, 80}) {
    setenv("COLUMNS", text(columns).c_str(), 1);
    const Finished done = run({"schedules", "--ranks", "4", "--micro-batches", "4", "--activations",
                               "1GiB", "--memory", "4GiB"});
    unsetenv("COLUMNS");
    ASSERT_EQ(done.code, 0) << done.err;
    EXPECT_THAT(done.out, HasSubstr("left out dualpipev: "));
    const std::size_t table = done.out.find("\nschedule ");
    const std::size_t sentences = done.out.find("\ntake ");
    ASSERT_LT(table, sentences);
    for (const std::string& part : {done.out.substr(0, table), done.out.substr(sentences)})
      for (const std::string& line : split(part, '\n'))
        EXPECT_LE(columns_of(line), columns) << line;
  }
}

// A table that cannot be read and one that cannot run are the same mistake of the caller.
TEST_F(SchedulesVerb, TablesThatCannotRunAreInvalidRequests) {
  for (const char* table : {"0f0,0b0\n", "0B0,0F0\n", ""}) {
    write_file(folder_ / "broken.csv", table);
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"view", "--csv", "broken.csv"},
          {"train", "small.toml", "--schedule", "broken.csv", "--devices", "virtual:1", "--balance",
           "[]"}}) {
      const Finished done = run(words);
      EXPECT_EQ(done.code, 2) << words[0] << ": " << table;
      EXPECT_THAT(done.err, HasSubstr("broken.csv"));
    }
  }
}

TEST_F(SchedulesVerb, NamesFilesThatAreNoTables) {
  const auto refused = [](const std::vector<std::string>& words) {
    const Finished done = run(words);
    EXPECT_EQ(done.code, 2) << done.out;
    return done.err;
  };
  EXPECT_THAT(refused({"view", "--schedule", "mine.csv"}), HasSubstr("--csv mine.csv"));
  EXPECT_THAT(refused({"view", "--schedule", "1f1b", "--save-csv", "t.txt"}),
              AllOf(HasSubstr("the file's name must end in .csv"), HasSubstr("--save-csv t.csv")));
  EXPECT_THAT(refused({"schedules", "--save-csv", "s.txt"}), HasSubstr("must end in .csv"));
  std::filesystem::create_directory(folder_ / "d.csv");
  EXPECT_THAT(refused({"view", "--csv", "d.csv"}),
              HasSubstr("--csv: 'd.csv' is a folder, not a file"));
  ASSERT_EQ(mkfifo((folder_ / "pipe.csv").c_str(), 0600), 0);
  EXPECT_THAT(refused({"view", "--csv", "pipe.csv"}),
              HasSubstr("'pipe.csv' is a named pipe, not a file"));
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
