#include "trestle/cli/plan_output.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <iterator>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/cli/verbs.h"
#include "trestle/plan/page/plan_page.h"
#include "trestle/train/run_folder/result_files.h"
#include "trestle/view/labels.h"
#include "trestle/view/svg.h"
#include "trestle/view/text_grid.h"

namespace trestle::cli {

namespace {

const plan::Plan& plan_number(const plan::PlanResult& result, std::int64_t number,
                              const std::string& flag) {
  if (result.best.empty())
    throw UsageError(text(flag, ": no strategy fits, so there is no plan to show"),
                     {.hint = "Give more devices or memory."});
  if (number > std::ssize(result.best))
    throw UsageError(text(flag, ": there is no plan ", number, ", only ",
                          counted(std::ssize(result.best), "plan")),
                     {.hint = "Raise --top, or give a smaller number."});
  return result.best[static_cast<std::size_t>(number - 1)];
}

void check_plan_file(const std::string& file, const std::string& flag, const char* ending,
                     Overwrite overwrite) {
  if (file.empty()) return;
  if (std::filesystem::path(file).extension() != ending)
    throw UsageError(text(flag, " ", file, ": the file's name must end in ", ending));
  need_folder_for(file, flag);
  train::refuse_replacing({file}, overwrite, flag);
}

}  // namespace

void check_plan_output(const PlanOutput& output) {
  refuse_one_file({{output.svg, "--svg"}, {output.html, "--html"}});
  check_plan_file(output.svg, "--svg", ".svg", output.overwrite);
  check_plan_file(output.html, "--html", ".html", output.overwrite);
}

void print_plan(const plan::ReportOf& report, const PlanOutput& output) {
  const plan::PlanResult& result = report.result;
  if (output.explain > 0)
    (void)plan_number(result, output.explain, "--explain");  // before any output
  if (!output.svg.empty())
    (void)plan_number(result, std::max<std::int64_t>(output.explain, 1), "--svg");
  const int columns = columns_for_text(STDOUT_FILENO);
  if (output.json)
    std::cout << plan::plan_json(report) << "\n";
  else
    std::cout << plan::plan_report(report, columns);
  if (output.explain > 0 && !output.json) {
    const plan::Plan& chosen = plan_number(result, output.explain, "--explain");
    std::cout << "\n"
              << output.explain << "  " << to_string(chosen.strategy) << "\n"
              << plan::explained(report, chosen, columns);
    const auto timeline = plan::timeline_of_plan(report, chosen);
    if (view::cell_count({timeline}) <= view::most_cells)
      std::cout << view::to_text_grid(timeline, {.columns = columns});
  }
  if (!output.svg.empty()) {
    const plan::Plan& chosen =
        plan_number(result, std::max<std::int64_t>(output.explain, 1), "--svg");
    write_file(output.svg, view::to_svg({plan::timeline_of_plan(report, chosen)}));
    if (!output.json) std::cout << "wrote " << output.svg << "\n";
  }
  if (!output.html.empty()) {
    write_file(output.html, plan::plan_page(report));
    if (!output.json) std::cout << "wrote " << output.html << "\n";
  }
}

}  // namespace trestle::cli
