#include "trestle/train/sweep/sweep.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/fuzz/fuzz.h"
#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/median.h"
#include "trestle/train/sweep/child_process.h"
#include "trestle/train/sweep/sweep_files.h"
#include "trestle/train/sweep/sweep_record.h"

namespace trestle::train {
namespace {

namespace fs = std::filesystem;
using support::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

recipe::Recipe named(const std::string& name) {
  recipe::Recipe recipe;
  recipe.name = name;
  recipe.model.name = "two_linears";
  return recipe;
}

TEST(Median, IsMiddleValue) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({4, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
}

TEST(SweepAxis, ReadsKeysAndValues) {
  const SweepAxis sizes = parse_axis("pipeline.split_size=1, 2,40");
  EXPECT_EQ(sizes.key, "pipeline.split_size");
  EXPECT_THAT(sizes.values, ElementsAre("1", "2", "40"));
  EXPECT_TRUE(sizes.is_number);
  EXPECT_EQ(parse_axis("split_size=3").key, "pipeline.split_size");
  EXPECT_THAT(parse_axis("schedule=gpipe,1f1b").values, ElementsAre("gpipe", "1f1b"));
  EXPECT_FALSE(parse_axis("schedule=gpipe").is_number);
  EXPECT_THAT(parse_axis("balance=13,9;11,11").values, ElementsAre("[13, 9]", "[11, 11]"));
  EXPECT_THAT(parse_axis("balance=13,9").values, ElementsAre("[13, 9]"));
  EXPECT_THAT(parse_axis("devices.use=cpu;cuda:0,cuda:1").values,
              ElementsAre("cpu", "cuda:0,cuda:1"));
  EXPECT_THAT(parse_axis("lend_cores=true,false").values, ElementsAre("true", "false"));
}

TEST(SweepAxis, ReportsInvalidAxes) {
  const auto refusal = [](const std::string& words) {
    return message_of([&] { parse_axis(words); });
  };
  EXPECT_EQ(refusal("pipeline.split_sizes=1"),
            "recipes have no field 'pipeline.split_sizes'; did you mean 'pipeline.split_size'?");
  EXPECT_EQ(refusal("splitsize=1"),
            "recipes have no field 'splitsize'; did you mean 'split_size'?");
  EXPECT_THAT(refusal("name=a,b"),
              AllOf(HasSubstr("several sections have a field 'name'"), HasSubstr("model.name")));
  EXPECT_THAT(refusal("split_size"), HasSubstr("is not KEY=VALUE,VALUE"));
  EXPECT_THAT(refusal("split_size="), HasSubstr("has an empty value"));
  EXPECT_THAT(refusal("split_size=1,,2"), HasSubstr("has an empty value"));
  EXPECT_THAT(refusal("split_size=1,one"), HasSubstr("not 'one'"));
  EXPECT_THAT(refusal("split_size=-1"), HasSubstr("not -1"));
  EXPECT_THAT(refusal("split_size=1,2,01"), HasSubstr("has the value 1 twice"));
}

TEST(SweepAxis, SetsOneFieldToOneValue) {
  recipe::Recipe recipe = named("a");
  set_field(recipe, "devices.use=cuda:0,cuda:1");
  EXPECT_EQ(recipe.devices.use, "cuda:0,cuda:1");
  set_field(recipe, "batch = 8");
  EXPECT_EQ(recipe.train.batch, 8);
  EXPECT_THAT(message_of([&] { set_field(recipe, "bach=8"); }), HasSubstr("did you mean 'batch'?"));
  EXPECT_THAT(message_of([&] { set_field(recipe, "batch"); }), HasSubstr("is not KEY=VALUE"));
}

TEST(SweepPoints, FormGridOverEachRecipe) {
  const std::vector<SweepAxis> axes = {parse_axis("split_size=2,4"), parse_axis("batch=8,16")};
  const auto points = sweep_points({named("a"), named("b")}, axes);
  ASSERT_EQ(points.size(), 8u);
  EXPECT_EQ(points[1].recipe.pipeline.split_size, 2);
  EXPECT_EQ(points[1].recipe.train.batch, 16);
  EXPECT_THAT(points[6].values, ElementsAre("4", "8"));
  EXPECT_EQ(name_of(points[6], axes, RecipeName::Show),
            "b · pipeline.split_size = 4 · train.batch = 8");
  EXPECT_EQ(name_of(points[6], axes, RecipeName::Hide),
            "pipeline.split_size = 4 · train.batch = 8");
  const auto alone = sweep_points({named("a")}, {});
  EXPECT_EQ(name_of(alone.at(0), {}, RecipeName::Hide), "a");
}

TEST(SweepAxis, TakesTextLiterally) {
  const SweepAxis axis = parse_axis(R"(folder=a\b;say "x")");
  EXPECT_THAT(axis.values, ElementsAre(R"(a\b)", R"(say "x")"));
  const auto points = sweep_points({named("a")}, {axis});
  EXPECT_EQ(points.at(0).recipe.data.folder, R"(a\b)");
  EXPECT_EQ(points.at(1).recipe.data.folder, R"(say "x")");
}

TEST(SweepPoints, RefuseTooManyPointsBeforeCreation) {
  std::string numbers = "1";
  for (int i = 2; i <= 3000; ++i) numbers += "," + std::to_string(i);
  std::vector<SweepAxis> axes = {parse_axis("batch=" + numbers), parse_axis("epochs=" + numbers)};
  EXPECT_THAT(message_of([&] { sweep_points({named("a")}, axes); }),
              AllOf(HasSubstr("9,000,000 points"), HasSubstr("at most 10,000")));
  for (const char* key : {"seed", "split_seed", "count", "save_every", "warm_up"})
    axes.push_back(parse_axis(std::string(key) + "=" + numbers));
  EXPECT_THAT(message_of([&] { sweep_points({named("a")}, axes); }), HasSubstr("points"));
}

TEST(SweepPoints, RefuseInvalidPointsBeforeMeasuring) {
  recipe::Recipe recipe = named("a");
  recipe.pipeline.micro_batches = 4;
  EXPECT_THAT(message_of([&] { sweep_points({recipe}, {parse_axis("split_size=2")}); }),
              AllOf(HasSubstr("'micro_batches' = 4 and 'split_size' = 2"),
                    HasSubstr("at a · pipeline.split_size = 2")));
  EXPECT_THAT(message_of([&] {
                sweep_points({named("a")}, {parse_axis("batch=2"), parse_axis("train.batch=4")});
              }),
              HasSubstr("'train.batch' is swept twice"));
  EXPECT_THAT(message_of([&] {
                sweep_points({named("a"), named("a")}, {});
              }),
              HasSubstr("two recipes are called 'a'"));
}

StepTimes some_times(double seconds) {
  StepTimes times;
  times.seconds = {seconds, 1.5 * seconds, 0.9 * seconds};
  times.optimizer_seconds = 0.01;
  times.predicted_seconds = 0.8 * seconds;
  times.predicted_idle = 0.25;
  times.micro_batches = 6;
  times.balance = {11, 11};
  times.devices = "2 virtual devices on 2 cores";
  times.peaks = {{.device = "virtual:0", .measured = 1000, .predicted = 1200}};
  return times;
}

class SweepFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / text("trestle_sweep_", getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path file() const { return folder_ / "measurements.jsonl"; }

  fs::path folder_;
};

using SweepRecords = SweepFolder;

TEST_F(SweepRecords, StoreMeasurements) {
  SweepRecord record(file());
  record.add({.key = "k", .point = "a \"point\"", .times = some_times(1)});
  record.add({.key = "other", .point = "another", .times = some_times(2)});
  record.add({.key = "k", .point = "a \"point\"", .times = some_times(3)});
  const SweepRecord read(file());
  ASSERT_EQ(read.runs_of("k").size(), 2u);
  EXPECT_EQ(read.runs_of("none").size(), 0u);
  const StepTimes back = read.runs_of("k")[1];
  EXPECT_THAT(back.seconds, ElementsAre(3, 4.5, 2.7));
  EXPECT_THAT(back.balance, ElementsAre(11, 11));
  EXPECT_EQ(back.predicted_seconds, 0.8 * 3);
  EXPECT_EQ(back.peaks.at(0).predicted, 1200);
  EXPECT_EQ(back.devices, "2 virtual devices on 2 cores");
}

TEST_F(SweepRecords, DropLineTruncatedByCrash) {
  SweepRecord(file()).add({.key = "k", .point = "p", .times = some_times(1)});
  const std::string whole = read_file(file());
  write_file(file(), whole + whole.substr(0, whole.size() / 2));
  SweepRecord record(file());
  EXPECT_EQ(record.runs_of("k").size(), 1u);
  record.add({.key = "k", .point = "p", .times = some_times(2)});
  EXPECT_EQ(SweepRecord(file()).runs_of("k").size(), 2u);
}

TEST_F(SweepRecords, NameDamagedLine) {
  SweepRecord(file()).add({.key = "k", .point = "p", .times = some_times(1)});
  write_file(file(), read_file(file()) + "{\"key\": \"k\"}\n");
  EXPECT_THAT(message_of([&] { SweepRecord record(file()); }),
              AllOf(HasSubstr("measurements.jsonl:2"), HasSubstr("no text 'point'"),
                    HasSubstr("Remove the line")));
}

TEST(SweepRecord, DamagedMeasurementsGiveAnErrorOrTimes) {
  const auto result = fuzz::run({to_json_line(some_times(0.25))},
                                [](std::string_view bytes) {
                                  const StepTimes times = times_from_json(std::string(bytes));
                                  ASSERT_FALSE(times.seconds.empty());
                                  for (const double seconds : times.seconds)
                                    ASSERT_TRUE(seconds >= 0 && seconds < 1e9);
                                },
                                {.iterations = 5000});
  EXPECT_GT(result.accepted, 0);
  EXPECT_GT(result.refused, 0);
}

TEST(SweepRecord, KeyCoversEverySettingThatMayChangeTimes) {
  const recipe::Recipe recipe = named("a");
  const std::string key = measurement_key(recipe, {});
  EXPECT_EQ(measurement_key(named("another name"), {}), key);
  recipe::Recipe elsewhere = recipe;
  elsewhere.train.runs = "other";
  EXPECT_EQ(measurement_key(elsewhere, {}), key);
  recipe::Recipe threads = recipe;
  threads.devices.threads = 2;
  EXPECT_NE(measurement_key(threads, {}), key);
  EXPECT_NE(measurement_key(recipe, {.steps = 6}), key);
}

TEST(ChildProcess, ReturnsResultOrErrorOfFunction) {
  const std::string large(1 << 20, 'x');
  const auto good = in_child_process([&] { return large; });
  ASSERT_TRUE(good);
  EXPECT_EQ(good->output, large);
  EXPECT_EQ(good->error, "");
  const auto bad = in_child_process([]() -> std::string { throw UsageError("no such thing"); });
  EXPECT_EQ(bad.value().error, "no such thing");
  const auto killed = in_child_process([]() -> std::string {
    raise(SIGKILL);
    return "";
  });
  EXPECT_THAT(killed.value().error, HasSubstr("ended by signal 9"));
  const auto left = in_child_process([]() -> std::string { _exit(3); });
  EXPECT_EQ(left.value().error, "ended with code 3");
}

TEST(ChildProcess, StopsOnRequest) {
  int asked = 0;
  const auto stopped = in_child_process(
      []() -> std::string {
        std::this_thread::sleep_for(std::chrono::seconds(60));
        return "";
      },
      [&] { return ++asked > 2; });
  EXPECT_FALSE(stopped);
}

SweepResult curve_result() {
  SweepResult result;
  result.axes = {parse_axis("split_size=1,2,4"), parse_axis("schedule=gpipe,1f1b")};
  result.finished = true;
  result.steps = 5;
  const auto points = sweep_points({named("net")}, result.axes);
  for (std::size_t i = 0; i < points.size(); ++i) {
    SweepRow row;
    row.name = name_of(points[i], result.axes, RecipeName::Hide);
    row.recipe = "net";
    row.values = points[i].values;
    const double seconds = 2.0 + static_cast<double>((i * 7) % 4);
    row.runs = {seconds, 1.1 * seconds, 0.95 * seconds};
    row.predicted = {0.9 * seconds};
    row.devices = "2 virtual devices on 2 cores";
    result.rows.push_back(row);
  }
  result.rows[3].runs.clear();
  result.rows[3].predicted.clear();
  result.rows[3].error = "virtual:0 is out of memory, \"really\"";
  result.best = 0;
  return result;
}

TEST(SweepFiles, CsvAndJsonHaveSameContent) {
  const SweepResult result = curve_result();
  const std::string csv = to_csv(result);
  EXPECT_THAT(csv,
              ::testing::StartsWith("recipe,pipeline.split_size,pipeline.schedule,micro_batches,"
                                    "runs,seconds,fastest,slowest,predicted,optimizer,error,"
                                    "schedule\nnet,1,gpipe,0,3,2,1.9,2.2,1.8,0,,\n"));
  EXPECT_THAT(csv,
              HasSubstr("net,2,1f1b,,0,,,,,,\"virtual:0 is out of memory, \"\"really\"\"\",\n"));
  const auto json = nlohmann::json::parse(to_json(result));
  ASSERT_EQ(json["points"].size(), 6u);
  EXPECT_EQ(json["points"][0]["seconds"], 2);
  EXPECT_EQ(json["points"][0]["values"]["pipeline.split_size"], "1");
  EXPECT_EQ(json["points"][3]["error"], result.rows[3].error);
  EXPECT_FALSE(json["points"][3].contains("seconds"));
  EXPECT_EQ(json["best"], 0);
}

TEST(SweepFiles, CurvesUseFirstNumericAxis) {
  const view::Chart chart = chart_of(curve_result());
  EXPECT_EQ(chart.kind, view::Chart::Kind::Curves);
  EXPECT_THAT(chart.labels, ElementsAre("1", "2", "4"));
  ASSERT_EQ(chart.series.size(), 2u);
  EXPECT_EQ(chart.series[1].name, "schedule 1f1b");
  EXPECT_EQ(chart.series[0].points.at(0).value, 2);
  EXPECT_EQ(chart.series[0].points.at(0).high, 2.2);
  EXPECT_TRUE(std::isnan(chart.series[1].points.at(1).value));
  EXPECT_EQ(chart.y_label, "seconds per step");
}

TEST(SweepFiles, BarsCompareRecipes) {
  SweepResult result;
  for (const char* name : {"single", "parallel", "pipelined"}) {
    SweepRow row;
    row.name = row.recipe = name;
    row.runs = {0.25};
    result.rows.push_back(row);
  }
  const view::Chart chart = chart_of(result);
  EXPECT_EQ(chart.kind, view::Chart::Kind::Bars);
  EXPECT_THAT(chart.labels, ElementsAre("single", "parallel", "pipelined"));
  EXPECT_EQ(chart.y_label, "milliseconds per step");
  EXPECT_EQ(chart.series.at(0).points.at(0).value, 250);
}

}  // namespace
}  // namespace trestle::train
