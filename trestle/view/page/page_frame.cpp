#include "trestle/view/page/page_frame.h"

#include "trestle/view/svg_writer.h"

namespace trestle::view {
namespace {

// Nothing may be loaded. Styles and scripts are those of the page.
constexpr std::string_view policy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'";

}  // namespace

std::string json_in_html(std::string_view json) {
  std::string escaped;
  escaped.reserve(json.size());
  for (const char letter : json) {
    // In JSON these letters occur in strings only.
    if (letter == '<')
      escaped += "\\u003c";
    else if (letter == '>')
      escaped += "\\u003e";
    else if (letter == '&')
      escaped += "\\u0026";
    else
      escaped += letter;
  }
  return escaped;
}

std::string to_html(const Page& page) {
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"";
  html += policy;
  html +=
      "\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>";
  html += xml_escape(page.title);
  html += "</title>\n<style>\n";
  html += base_style();
  for (const std::string_view style : page.styles) html += style;
  html += "</style>\n</head>\n<body>\n";
  html += page.body;
  html += "\n<noscript><p>This browser runs no scripts, so the page shows its text alone.</p><pre>";
  html += xml_escape(page.without_script);
  html += "</pre></noscript>\n<script type=\"application/json\" id=\"data\">";
  html += json_in_html(page.data);
  html += "</script>\n<script>\n(() => {\n'use strict';\n";
  html += base_script();
  for (const std::string_view script : page.scripts) html += script;
  html += "})();\n</script>\n</body>\n</html>\n";
  return html;
}

}  // namespace trestle::view
