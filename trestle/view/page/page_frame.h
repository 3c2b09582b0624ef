#pragma once

#include <string>
#include <string_view>
#include <vector>

// One self-contained HTML page: it opens from a file, and it loads nothing. A policy in its head
// tells the browser to refuse any other resource.
//
//   const std::string html = view::to_html({.title = "Plans of unet & more",
//                                           .body = "<p>2 plans</p>",
//                                           .data = R"({"plans": 2})"});
namespace trestle::view {

struct Page {
  std::string title = {};                      // text; to_html() escapes it
  std::vector<std::string_view> styles = {};   // CSS after base_style()
  std::string body = {};                       // HTML: xml_escape() what comes from a user
  std::string data = {};                       // JSON, which scripts read as `page.data`
  std::vector<std::string_view> scripts = {};  // after base_script()
  std::string without_script = {};             // text for a browser that runs no scripts
};

std::string to_html(const Page& page);

// JSON that may stand in a script element: whatever a string in it has, the element does not end.
std::string json_in_html(std::string_view json);

// Colours in light and in dark, text, tables, buttons and what is left out on paper.
std::string_view base_style();

// `page.data`, and functions that make elements: their texts are never read as HTML.
std::string_view base_script();

}  // namespace trestle::view
