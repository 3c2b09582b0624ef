#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

// Writes SVG: nested elements, escaped text, short numbers.
//
//   SvgWriter svg({.width = 200, .height = 40, .title = "one box"});
//   svg.element("rect", {{"x", 10}, {"y", 10}, {"width", 30}, {"height", 20}});
//   svg.text(50, 25, "R & D", {{"font-size", 12}});
//   std::string file = std::move(svg).finish();
namespace trestle::view {

// Escapes text for XML content and attributes: & < > " ' become entities; control characters and
// bytes that are not UTF-8 become U+FFFD.
std::string xml_escape(std::string_view text);

// At most two decimals, without trailing zeros: "12.5". NaN and infinities become "0".
std::string svg_number(double x);

struct Attribute {
  Attribute(std::string_view name, double number) : name(name), value(svg_number(number)) {}
  Attribute(std::string_view name, std::string_view text) : name(name), value(text) {}
  Attribute(std::string_view name, const char* text) : name(name), value(text) {}
  Attribute(std::string_view name, const std::string& text) : name(name), value(text) {}
  std::string_view name;
  std::string value;  // not yet escaped
};
using Attributes = std::initializer_list<Attribute>;

// Builds the d attribute of a path.
class Path {
 public:
  Path& move(double x, double y);
  Path& line(double x, double y);
  Path& curve(double x1, double y1, double x2, double y2, double x, double y);
  Path& close();
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class SvgWriter {
 public:
  struct Options {
    double width = 0;  // user units, which are pixels unless the picture is scaled
    double height = 0;
    std::string title;  // for screen readers and tabs; not drawn
  };
  // Begins the file and draws a white background, so that dark viewers show it the same way.
  explicit SvgWriter(const Options& options);

  void open(std::string_view tag, Attributes attributes = {});
  void close();                                                    // the element opened last
  void element(std::string_view tag, Attributes attributes = {});  // without content
  void element(std::string_view tag, Attributes attributes, std::string_view content);
  void text(double x, double y, std::string_view content, Attributes attributes = {});

  // Closes all open elements and returns the file.
  std::string finish() &&;

 private:
  void begin(std::string_view tag, Attributes attributes);

  std::string out_;
  std::vector<std::string> open_;
};

// Estimates the width of `text` at that font size in the fonts of the palette. The estimate is
// rather too wide than too narrow.
double text_width(std::string_view text, double font_size);

}  // namespace trestle::view
