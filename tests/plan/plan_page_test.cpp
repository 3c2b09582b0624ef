// The text of a page. browser_test.py opens pages in a browser.
#include "trestle/plan/page/plan_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/plan/plan_pages.h"
#include "trestle/view/page/page_frame.h"
#include "trestle/view/page/timeline_drawing.h"

namespace trestle::plan {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

nlohmann::json data_of(const std::string& html) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const std::size_t from = html.find(begin) + begin.size();
  return nlohmann::json::parse(html.substr(from, html.find("</script>", from) - from));
}

std::size_t count_of(const std::string& text, const std::string& word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    ++count;
  return count;
}

TEST(PlanPage, HasAllPlansOfTheTable) {
  const auto& [html, result] = pages::page_of_64_devices();
  const auto data = data_of(html);
  ASSERT_EQ(data["plans"].size(), result.table.size());
  EXPECT_GT(result.table.size(), 30U);
  std::size_t in_front = 0;
  for (std::size_t i = 0; i < result.table.size(); ++i) {
    const auto& plan = data["plans"][i];
    EXPECT_EQ(plan["name"], to_string(result.table[i].strategy));
    EXPECT_EQ(plan["cells"].size(), data["columns"].size());
    EXPECT_EQ(plan["cells"][0][1], result.table[i].step.seconds);
    EXPECT_EQ(plan.contains("lost"), i > 0);
    EXPECT_EQ(plan.contains("timeline"), !plan.contains("no_timeline"));
    in_front += plan.contains("front") ? 1 : 0;
  }
  EXPECT_EQ(in_front, result.front.size());
  EXPECT_EQ(data["map"]["points"].size(), result.map.size());
  EXPECT_EQ(data["too_large"].size(), result.too_large.size());
  EXPECT_EQ(data["rules"].size(), result.rules.size());
}

TEST(PlanPage, SaysWhatEachFigureIs) {
  const auto data = data_of(pages::page_of_64_devices().html);
  for (const auto& column : data["columns"])
    EXPECT_TRUE(column["is"] == "choice" || column["is"] == "simulated" ||
                column["is"] == "assumed")
        << column;
  EXPECT_EQ(data["columns"][0]["heading"], "step");
  EXPECT_EQ(data["columns"][0]["is"], "simulated");
  EXPECT_GT(data["figures"].size(), 15U);
  for (const auto& figure : data["figures"]) {
    EXPECT_TRUE(figure[2] == "measured" || figure[2] == "simulated" || figure[2] == "assumed");
    EXPECT_FALSE(figure[3].get<std::string>().empty()) << figure;
  }
}

// The stages of a plan add up to its peak.
TEST(PlanPage, LedgersAreThoseOfTheModel) {
  const auto& [html, result] = pages::page_of_64_devices();
  const auto data = data_of(html);
  for (std::size_t i = 0; i < result.table.size(); ++i) {
    double fullest = 0;
    int stages = 0;
    for (const auto& stage : data["plans"][i]["stages"]) {
      double total = 0;
      for (std::size_t k = 1; k < stage[2].size(); k += 2) total += stage[2][k].get<double>();
      fullest = std::max(fullest, total);
      stages += stage[1].get<int>() - stage[0].get<int>() + 1;
    }
    EXPECT_NEAR(fullest, result.table[i].worst.total(), 10) << data["plans"][i]["name"];
    EXPECT_EQ(stages, data["plans"][i].contains("worst") ? 1 : result.table[i].strategy.pipeline);
  }
}

TEST(PlanPage, LoadsNothing) {
  const std::string& html = pages::page_of_64_devices().html;
  for (const char* word : {"http://", "https://", "src=", "@import", "url(", "fetch(", "//cdn"})
    EXPECT_THAT(html, Not(HasSubstr(word)));
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
  EXPECT_EQ(count_of(html, "href="), 2U);  // an empty icon, and a link to the table
  EXPECT_THAT(html, AllOf(HasSubstr("href=\"data:,\""), HasSubstr("href=\"#plans\"")));
}

TEST(PlanPage, EscapesEveryName) {
  const PlanRequest request{.devices = 8, .batch = 16, .map = MapRequest{.points = 50, .plans = 8}};
  const std::string plain = pages::page(pages::billions_39, request).html;
  const std::string html =
      pages::page(pages::billions_39, request, pages::hostile, pages::hostile).html;
  EXPECT_THAT(html, Not(HasSubstr("<script>window.broken")));
  EXPECT_THAT(html, Not(HasSubstr("<img")));
  EXPECT_THAT(html, HasSubstr("&lt;/script&gt;&lt;/title&gt;"));
  EXPECT_THAT(html, HasSubstr("\\u003c/script\\u003e"));
  for (const char* tag : {"<script", "</script>", "<title>", "<section", "<p"})
    EXPECT_EQ(count_of(html, tag), count_of(plain, tag)) << tag;
  EXPECT_EQ(html.find('\xff'), std::string::npos);
  bool found = false;
  const auto data = data_of(html);
  for (const auto& figure : data["figures"])
    found = found || figure[3].get<std::string>().starts_with("</script></title>");
  EXPECT_TRUE(found);
}

TEST(PlanPage, ThousandsOfStrategiesStayBelowAMegabyte) {
  const auto [html, result] = pages::page(pages::billions_175, pages::on_1024_devices());
  std::cout << html.size() << " bytes, " << result.simulated << " of " << result.listed
            << " simulated, front of " << result.front.size() << ", map of " << result.map.size()
            << "\n";
  EXPECT_LT(html.size(), 1'000'000U);
  EXPECT_LT(result.simulated, result.listed / 2);
  const auto data = data_of(html);
  EXPECT_TRUE(data["plans"][0].contains("timeline"));
  EXPECT_THAT(html, HasSubstr("The page has the timelines of its first "));
}

TEST(PlanPage, NothingFits) {
  const std::string html =
      pages::page(pages::billions_175, {.devices = 8, .batch = 64, .map = MapRequest()}).html;
  const auto data = data_of(html);
  EXPECT_TRUE(data["plans"].empty());
  EXPECT_TRUE(data.contains("least"));
  EXPECT_THAT(html, AllOf(HasSubstr(" fits."), Not(HasSubstr("id=\"table\""))));
}

TEST(PlanPage, WithoutAMapItHasTheBestPlans) {
  const auto [html, result] = pages::page(pages::billions_39, {.devices = 64, .batch = 64});
  EXPECT_EQ(data_of(html)["plans"].size(), result.best.size());
  EXPECT_THAT(html, Not(HasSubstr("id=\"map\"")));
}

TEST(TimelineDrawing, ShortensTheMiddle) {
  const Machine machine = pages::machine();
  const PlannedGpt model(pages::billions_39, machine);
  const PlanRequest request{
      .devices = 64, .batch = 64, .kept = parse_kept({"pipeline=8,tensor=8"})};
  const PlanResult result = find_plans(model, machine, request);
  const schedule::Timeline timeline =
      timeline_of_plan({model, machine, request, result}, result.best.at(0));
  const view::DrawnTimeline whole = view::timeline_drawing(timeline);
  EXPECT_EQ(whole.hidden, 0U);
  EXPECT_EQ(nlohmann::json::parse(whole.json)["windows"].size(), 1U);
  const view::DrawnTimeline ends = view::timeline_drawing(timeline, {.most_cells = 100});
  EXPECT_EQ(ends.cells + ends.hidden, whole.cells);
  EXPECT_LE(ends.cells, 100U);
  EXPECT_GT(ends.cells, 40U);
  const auto json = nlohmann::json::parse(ends.json);
  ASSERT_EQ(json["windows"].size(), 2U);
  EXPECT_EQ(json["windows"][0]["rows"].size(), 8U);
  EXPECT_EQ(json["windows"][0]["to"].get<int>() - json["windows"][0]["from"].get<int>(),
            json["windows"][1]["to"].get<int>() - json["windows"][1]["from"].get<int>());
}

TEST(PageFrame, IsWholeWithoutContent) {
  const std::string html = view::to_html({.title = "a < b", .data = "{\"a\":\"</script>&\"}"});
  EXPECT_THAT(html, AllOf(HasSubstr("<title>a &lt; b</title>"),
                          HasSubstr("{\"a\":\"\\u003c/script\\u003e\\u0026\"}"),
                          testing::StartsWith("<!DOCTYPE html>"), testing::EndsWith("</html>\n")));
}

}  // namespace
}  // namespace trestle::plan
