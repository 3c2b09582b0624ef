// The output that docs/plan.md shows is the planner's.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/plan/published_rows.h"
#include "trestle/base/files.h"
#include "trestle/plan/search/plan_report.h"
#include "trestle/plan/search/search.h"

namespace trestle::plan {
namespace {

// TRESTLE_UPDATE_DOCS=1 writes it again.
TEST(PlanDocument, AnswersTheQuestionAboutTwoMachines) {
  const std::string path = std::string(TRESTLE_SOURCE_DIR) + "/docs/plan.md";
  const std::string command =
      "trestle plan --model llama-2-7b --machine rtx4090-4-per-node --devices 8 --batch 64";
  const Machine machine = published::machine("rtx4090-4-per-node");
  const PlanRequest request{.devices = 8, .batch = 64};
  const PlannedGpt model(parse_known_model("llama-2-7b"), machine);
  const PlanResult result = find_plans(model, machine, request);
  ASSERT_FALSE(result.best.empty());
  const std::string report = plan_report({model, machine, request, result}, 132);
  std::string page = read_text_file(path);
  const std::size_t shown = page.find("$ " + command + "\n");
  ASSERT_NE(shown, std::string::npos);
  const std::size_t begin = shown + command.size() + 3;
  const std::size_t end = page.find("```", begin);
  ASSERT_NE(end, std::string::npos);
  if (std::getenv("TRESTLE_UPDATE_DOCS") != nullptr) {
    page.replace(begin, end - begin, report);
    write_file(path, page);
    return;
  }
  EXPECT_EQ(page.substr(begin, end - begin), report);
}

}  // namespace
}  // namespace trestle::plan
