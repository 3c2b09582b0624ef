#include "trestle/view/chrome_trace.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tests/view/samples.h"
#include "trestle/base/error.h"
#include "trestle/view/svg.h"
#include "trestle/view/text_grid.h"

namespace trestle::view {
namespace {

using nlohmann::json;
using schedule::Timeline;
using ::testing::HasSubstr;

void expect_same(const Timeline& a, const Timeline& b) {
  EXPECT_EQ(a.title, b.title);
  EXPECT_EQ(a.stages, b.stages);
  EXPECT_EQ(a.micro_batches, b.micro_batches);
  EXPECT_EQ(a.rank_count, b.rank_count);
  EXPECT_EQ(a.rank_of_stage, b.rank_of_stage);
  EXPECT_EQ(a.routes, b.routes);
  EXPECT_EQ(a.peak_bytes, b.peak_bytes);
  EXPECT_EQ(a.device_of_stage, b.device_of_stage);
  EXPECT_EQ(a.device_peak_bytes, b.device_peak_bytes);
  EXPECT_EQ(a.world_ranks, b.world_ranks);
  EXPECT_EQ(a.whole_layers, b.whole_layers);
  EXPECT_EQ(a.host_of_rank, b.host_of_rank);
  ASSERT_EQ(a.crossings.size(), b.crossings.size());
  for (std::size_t i = 0; i < a.crossings.size(); ++i) {
    EXPECT_EQ(a.crossings[i].host, b.crossings[i].host);
    EXPECT_EQ(a.crossings[i].rank, b.crossings[i].rank);
    EXPECT_EQ(a.crossings[i].action, b.crossings[i].action);
    EXPECT_EQ(a.crossings[i].begin, b.crossings[i].begin);
    EXPECT_EQ(a.crossings[i].end, b.crossings[i].end);
  }
  ASSERT_EQ(a.tensor_messages.size(), b.tensor_messages.size());
  for (std::size_t i = 0; i < a.tensor_messages.size(); ++i) {
    EXPECT_EQ(a.tensor_messages[i].rank, b.tensor_messages[i].rank);
    EXPECT_EQ(a.tensor_messages[i].kind, b.tensor_messages[i].kind);
    EXPECT_EQ(a.tensor_messages[i].bytes, b.tensor_messages[i].bytes);
    EXPECT_EQ(a.tensor_messages[i].begin, b.tensor_messages[i].begin);
    EXPECT_EQ(a.tensor_messages[i].wait, b.tensor_messages[i].wait);
    EXPECT_EQ(a.tensor_messages[i].end, b.tensor_messages[i].end);
  }
  ASSERT_EQ(a.events.size(), b.events.size());
  for (std::size_t i = 0; i < a.events.size(); ++i) {
    EXPECT_EQ(a.events[i].rank, b.events[i].rank);
    EXPECT_EQ(a.events[i].action, b.events[i].action);
    EXPECT_EQ(a.events[i].begin, b.events[i].begin);  // bitwise
    EXPECT_EQ(a.events[i].end, b.events[i].end);
  }
  ASSERT_EQ(a.memory.size(), b.memory.size());
  for (std::size_t i = 0; i < a.memory.size(); ++i) {
    EXPECT_EQ(a.memory[i].rank, b.memory[i].rank);
    EXPECT_EQ(a.memory[i].time, b.memory[i].time);
    EXPECT_EQ(a.memory[i].bytes, b.memory[i].bytes);
  }
}

TEST(ChromeTrace, SurvivesARoundTrip) {
  const Timeline simulated = samples::unet();
  const Timeline measured = samples::measured(simulated);
  const std::vector<Timeline> back = from_chrome_trace(to_chrome_trace({simulated, measured}));
  ASSERT_EQ(back.size(), 2u);
  expect_same(back[0], simulated);
  expect_same(back[1], measured);
  EXPECT_EQ(to_svg(back), to_svg({simulated, measured}));
}

TEST(ChromeTrace, CarriesWhatLeavesHosts) {
  const Timeline timeline = samples::unet_over_hosts();
  ASSERT_FALSE(timeline.crossings.empty());
  const std::vector<Timeline> back = from_chrome_trace(to_chrome_trace({timeline}));
  ASSERT_EQ(back.size(), 1u);
  expect_same(back[0], timeline);
  EXPECT_EQ(to_svg(back), to_svg({timeline}));
}

TEST(ChromeTrace, CarriesMessagesOfTensorRanks) {
  const Timeline timeline = samples::over_tensor_ranks();
  const std::string trace = to_chrome_trace({timeline});
  EXPECT_THAT(trace, HasSubstr("rank 0 tensor ranks"));
  const std::vector<Timeline> back = from_chrome_trace(trace);
  ASSERT_EQ(back.size(), 1u);
  expect_same(back[0], timeline);
  EXPECT_EQ(to_svg(back), to_svg({timeline}));
}

TEST(ChromeTrace, CarriesEveryKindOfAction) {
  Timeline timeline = samples::by_hand();
  timeline.micro_batches = 3;
  timeline.routes = {{.from_stage = 0, .to_stage = 2, .skip = true, .name = "é\"\\<"}};
  for (int kind = 0; kind <= static_cast<int>(schedule::Kind::Step); ++kind) {
    schedule::Action action{.kind = static_cast<schedule::Kind>(kind), .threads = 2, .stage = 1};
    if (action.kind < schedule::Kind::Unshard) action.micro_batch = 1;
    if (schedule::is_send(action.kind) || schedule::is_receive(action.kind)) action.route = 0;
    if (action.kind == schedule::Kind::OverlapForwardBackward) {
      action.partner_stage = 2;
      action.partner_micro_batch = 0;
    }
    timeline.events.push_back({.rank = 1, .action = action, .begin = 20.1, .end = 20.1});
  }
  timeline.world_ranks = {4, 6, 5, 7};
  expect_same(from_chrome_trace(to_chrome_trace({timeline})).at(0), timeline);
}

TEST(ChromeTrace, WritesTheEventsThatViewersRead) {
  const json trace = json::parse(to_chrome_trace({samples::gpipe_with_skips()}));
  std::map<std::string, int> phases;
  std::map<std::string, int> flows;
  for (const json& event : trace.at("traceEvents")) {
    ++phases[event.at("ph")];
    if (event.at("ph") == "s") ++flows[event.at("name")];
    if (event.at("ph") == "f") {
      EXPECT_EQ(event.at("bp"), "e");
    }
  }
  EXPECT_EQ(phases["M"], 6);  // a process and two threads, with names and sort indices
  EXPECT_EQ(phases["s"], phases["f"]);
  EXPECT_EQ(flows["skip s1"], 4);
  EXPECT_EQ(flows["gradient of skip s2"], 4);
  EXPECT_EQ(flows["activation"], 4);
}

TEST(ChromeTrace, IgnoresEventsOfOtherPrograms) {
  json trace = json::parse(to_chrome_trace({samples::by_hand()}));
  trace["traceEvents"].push_back({{"ph", "X"}, {"name", "kernel"}, {"ts", 1}, {"dur", 2}});
  trace["traceEvents"].push_back({{"ph", "C"}, {"name", "power"}});
  trace["traceEvents"].push_back(3);
  expect_same(from_chrome_trace(trace.dump()).at(0), samples::by_hand());
}

// Each edit makes an invalid file.
TEST(ChromeTrace, RejectsInvalidTimelinesWithThePlace) {
  const json good = json::parse(to_chrome_trace({samples::unet()}));
  std::size_t slice = 0;
  while (good["traceEvents"][slice]["ph"] != "X") ++slice;
  const std::string first = "/traceEvents/" + std::to_string(slice);
  const std::string own = "/otherData/trestle";
  const std::vector<std::pair<std::string, json>> edits = {
      {first + "/tid", 2},
      {first + "/tid", -1},
      {first + "/tid", 1e300},
      {first + "/tid", std::uint64_t{1} << 63},
      {first + "/pid", 1},
      {first + "/args/begin", nullptr},
      {first + "/args/begin", "now"},
      {first + "/args/end", -1.0},
      {first + "/args/action", "0Q0"},
      {first + "/args/action", "9F0"},
      {first + "/args/action", "0F4"},
      {first + "/args/action", "0SEND_SKIP0:r99"},
      {first + "/args/action", 7},
      {first + "/args/route", 99},
      {own + "/version", 2},
      {own + "/timelines", 1},
      {own + "/timelines/0", 1},
      {own + "/timelines/0/ranks", 1 << 30},
      {own + "/timelines/0/stages", -1},
      {own + "/timelines/0/title", 5},
      {own + "/timelines/0/rank_of_stage", {0, 1, 0}},
      {own + "/timelines/0/rank_of_stage/0", 2},
      {own + "/timelines/0/routes/0/to_stage", 2},
      {own + "/timelines/0/routes/0/skip", 1},
      {own + "/timelines/0/peak_bytes/0", "many"},
      {"/otherData", nullptr},
      {"/traceEvents", {{"a", 1}}},
  };
  for (const auto& [where, value] : edits) {
    json bad = good;
    bad[json::json_pointer(where)] = value;
    try {
      from_chrome_trace(bad.dump());
      ADD_FAILURE() << where << " = " << value << " was accepted";
    } catch (const FormatError& error) {
      EXPECT_THAT(error.what(), HasSubstr("timeline")) << where;
    }
  }
}

TEST(ChromeTrace, RejectsInvalidJson) {
  const std::vector<std::string> bad = {
      "", "{", "[]", "null", "1e999", "\xff\xfe", std::string(100000, '['), "{\"traceEvents\":[]}"};
  for (const std::string& content : bad) {
    EXPECT_THROW(from_chrome_trace(content), FormatError) << content.substr(0, 20);
  }
}

// A pipeline of four of the ranks of a mesh.
TEST(ChromeTrace, NamesRowsByRanksOfTheWorld) {
  Timeline timeline = samples::by_hand();
  timeline.world_ranks = {4, 6, 5, 7};
  timeline.whole_layers = {"blocks.0", "head"};
  const std::string trace = to_chrome_trace({timeline});
  EXPECT_THAT(trace, HasSubstr("rank 6"));
  EXPECT_EQ(from_chrome_trace(trace).at(0).whole_layers, timeline.whole_layers);
  EXPECT_EQ(from_chrome_trace(trace).at(0).world_ranks, (std::vector<int>{4, 6, 5, 7}));
  for (const std::string& drawn : {trace, to_svg({timeline}), to_text_grid(timeline)}) {
    EXPECT_THAT(drawn, HasSubstr("rank 4"));
    EXPECT_THAT(drawn, ::testing::Not(HasSubstr("rank 1")));
  }
  EXPECT_THAT(to_text_grid(timeline), ::testing::StartsWith("rank 4  "));
}

// A damaged file gives a timeline that can be drawn, or a FormatError.
TEST(ChromeTrace, ReadsDamagedFilesOrThrowsFormatError) {
  const std::string good = to_chrome_trace({samples::gpipe_with_skips()});
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    std::string damaged = good;
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < edits; ++i) {
      const std::size_t at = random() % damaged.size();
      switch (random() % 4) {
        case 0:
          damaged[at] = static_cast<char>(random());
          break;
        case 1:
          damaged[at] = "0123456789-e.,:[]{}\""[random() % 20];
          break;
        case 2:
          damaged.erase(at, 1 + random() % 20);
          break;
        default:
          damaged.insert(at, damaged.substr(random() % damaged.size(), 1 + random() % 20));
      }
      if (damaged.empty()) damaged = "x";
    }
    if (round % 20 == 0) damaged.resize(random() % damaged.size());
    try {
      const std::vector<Timeline> timelines = from_chrome_trace(damaged);
      to_svg(timelines);
      for (const Timeline& timeline : timelines) to_text_grid(timeline, {.columns = 100});
    } catch (const FormatError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, 600);
}

TEST(ChromeTrace, AcceptsTitlesThatAreNotUtf8) {
  Timeline timeline = samples::by_hand();
  timeline.title = "bad \xff title";
  EXPECT_EQ(from_chrome_trace(to_chrome_trace({timeline})).at(0).title, "bad \xEF\xBF\xBD title");
}

}  // namespace
}  // namespace trestle::view
