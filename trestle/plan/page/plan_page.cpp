#include "trestle/plan/page/plan_page.h"

#include <cmath>
#include <cstdint>
#include <iterator>
#include <vector>

#include "trestle/base/counted.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/plan/page/plan_columns.h"
#include "trestle/plan/page/plan_data.h"
#include "trestle/plan/page/plan_scripts.h"
#include "trestle/view/page/page_frame.h"
#include "trestle/view/page/timeline_drawing.h"
#include "trestle/view/svg_writer.h"

namespace trestle::plan {
namespace {

using view::xml_escape;

std::string paragraph(const std::string& words, const std::string& kind = "") {
  return text("<p", kind.empty() ? "" : " class=\"" + kind + "\"", ">", xml_escape(words),
              "</p>\n");
}

std::string fact(const std::string& name, const std::string& value, const std::string& is) {
  return text("<div><dt>", xml_escape(name), " <span class=\"tag\">", is, "</span></dt><dd>",
              xml_escape(value), "</dd></div>\n");
}

std::string bytes_on_page(double bytes) {
  return format_bytes(std::llround(std::min(bytes, 9e18)));
}

std::string best_facts(const ReportOf& report) {
  const Plan& best = report.result.best.front();
  std::string html = "<dl class=\"facts\">\n";
  html += fact("step",
               text(format_duration(best.step.seconds), " (",
                    format_duration(least_seconds(best.step.seconds, report.machine)), " to ",
                    format_duration(most_seconds(best.step.seconds, report.machine)), ")"),
               "simulated");
  const auto tokens = static_cast<double>(report.model.tokens());
  html += fact(tokens > 1 ? "tokens per second" : "samples per second",
               format_count(std::llround(best.samples_per_second * tokens)), "simulated");
  if (report.machine.peak.value > 0)
    html += fact("MFU", text(std::llround(100 * best.mfu), " %"), "simulated");
  html += fact("peak", text(bytes_on_page(best.worst.total()), " on stage ", best.worst.stage),
               "assumed");
  if (has_memory_limit(report.result))
    html += fact("free", bytes_on_page(best.headroom), "assumed");
  if (report.machine.price_per_hour) html += fact("price", money_text(best.money), "assumed");
  return html + "</dl>\n";
}

std::string best_text(const ReportOf& report) {
  const PlanResult& result = report.result;
  const Plan& best = result.best.front();
  std::string html = text("<p class=\"best\">The best: <strong>",
                          xml_escape(to_string(best.strategy)), "</strong></p>\n");
  html += best_facts(report);
  if (result.best.size() < 2) return html;
  html += paragraph(text("The second lost: ", why_lost(report, result.best[1], best), "."));
  std::int64_t within = 0;
  for (const Plan& plan : result.best)
    if (plan.step.seconds <= most_seconds(best.step.seconds, report.machine)) ++within;
  if (within > 1)
    html += paragraph(text("The first ", within,
                           " differ by less than the range of a prediction: measure before you "
                           "choose between them."));
  return html;
}

std::string head(const ReportOf& report) {
  const PlanRequest& request = report.request;
  const std::string kept = to_string(request.kept);
  std::string html =
      text("<a class=\"skip\" href=\"#plans\">To the table of plans</a>\n<header>\n<h1>",
           xml_escape(report.model.name()), "</h1>\n");
  html += paragraph(text(counted(request.devices, "device"), " of ", report.machine.name,
                         " · batch ", format_count(request.batch),
                         has_memory_limit(report.result)
                             ? text(" · ", bytes_on_page(report.result.available), " of a device")
                             : std::string(),
                         kept.empty() ? "" : " · keeps " + kept, " · by ", to_string(request.goal)),
                    "quiet");
  return html +
         (report.result.best.empty()
              ? paragraph(text("None of ",
                               counted(report.result.listed, "legal strategy", "legal strategies"),
                               " fits."),
                          "warn")
              : best_text(report)) +
         "</header>\n";
}

std::string map_section(const ReportOf& report) {
  if (report.result.map.empty()) return "";
  return "<section class=\"keep-whole\"><h2 id=\"map-title\">Time against memory</h2>\n"
         "<p class=\"quiet\">Each dot is a legal strategy. No strategy beats a plan of the front "
         "in "
         "both time and memory. Open a dot of the front with a click or with Enter.</p>\n"
         "<div id=\"map\" class=\"map\"></div></section>\n";
}

std::string plans_section(const ReportOf& report) {
  const PlanResult& result = report.result;
  if (result.best.empty()) return "";
  std::string html = "<section><h2 id=\"plans\" tabindex=\"-1\">Plans</h2>\n";
  const std::string best = text("The best ", counted(std::ssize(result.best), "plan"));
  html += paragraph(
      text(best,
           result.table.empty()
               ? std::string(".")
               : text(", ", counted(std::ssize(result.front), "plan"),
                      " of the front, and the fastest plans of other combinations of degrees, "
                      "level and recomputation. The map below has the rest."),
           " Open a plan for its bytes, its timeline and why it lost."),
      "quiet");
  return html +
         "<div id=\"filters\" class=\"filters screen-only\"></div>\n"
         "<p id=\"count\" class=\"quiet\" role=\"status\"></p>\n"
         "<p id=\"same\" class=\"quiet\"></p>\n"
         "<div class=\"scroll\"><table id=\"table\"></table></div>\n"
         "<button type=\"button\" id=\"all\" class=\"show-all screen-only\"></button></section>\n";
}

std::string counts(const ReportOf& report) {
  const PlanResult& result = report.result;
  return text(counted(result.listed, "legal strategy", "legal strategies"), " · ",
              format_count(result.fitting), " fit · ", format_count(result.simulated),
              " simulated with ", counted(result.tables, "table"), " · ",
              format_count(result.bounded), " slower than these by their bounds");
}

std::string body_of(const ReportOf& report) {
  return text(
      head(report), "<main>\n", plans_section(report), map_section(report),
      "<section id=\"missing\"></section>\n"
      "<section><h2>What the figures are</h2>\n",
      paragraph("Nothing ran: no figure of this page is a measurement of a step. Each column "
                "has figures of one origin.",
                "quiet"),
      "<div class=\"scroll\" id=\"figures\"></div></section>\n</main>\n<footer>",
      paragraph(counts(report), "quiet"), "</footer>\n");
}

}  // namespace

std::string plan_page(const ReportOf& report, const PlanPageOptions& options) {
  return view::to_html({.title = text("Plans of ", report.model.name()),
                        .styles = {view::timeline_style(), plan_style()},
                        .body = body_of(report),
                        .data = plan_page_data(report, options),
                        .scripts = {view::timeline_script(), bytes_script(), table_script(),
                                    map_script(), missing_script()},
                        .without_script = plan_report(report, 100)});
}

}  // namespace trestle::plan
