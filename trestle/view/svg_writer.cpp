#include "trestle/view/svg_writer.h"

#include <cmath>

#include "trestle/base/utf8.h"
#include "trestle/view/palette.h"
#include "trestle/view/time_axis.h"

namespace trestle::view {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";  // U+FFFD

// The length of the UTF-8 character at `at` if XML allows it, else 0.
std::size_t sequence_length(std::string_view text, std::size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x20) return first == '\t' || first == '\n' || first == '\r' ? 1 : 0;
  const std::string_view rest = text.substr(at);
  if (rest.starts_with("\xEF\xBF\xBE") || rest.starts_with("\xEF\xBF\xBF")) return 0;
  return utf8_length(text, at);
}

}  // namespace

std::string xml_escape(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = sequence_length(text, at);
    switch (text[at]) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += length == 0 ? replacement : text.substr(at, length);
    }
    at += length == 0 ? 1 : length;
  }
  return result;
}

std::string svg_number(double x) {
  if (!std::isfinite(x)) return "0";
  return decimal(x, 2, Zeros::Drop);
}

Path& Path::move(double x, double y) {
  text_ += "M" + svg_number(x) + " " + svg_number(y);
  return *this;
}

Path& Path::line(double x, double y) {
  text_ += "L" + svg_number(x) + " " + svg_number(y);
  return *this;
}

Path& Path::curve(double x1, double y1, double x2, double y2, double x, double y) {
  text_ += "C" + svg_number(x1) + " " + svg_number(y1) + " " + svg_number(x2) + " " +
           svg_number(y2) + " " + svg_number(x) + " " + svg_number(y);
  return *this;
}

Path& Path::close() {
  text_ += "Z";
  return *this;
}

SvgWriter::SvgWriter(const Options& options) {
  const std::string width = svg_number(options.width);
  const std::string height = svg_number(options.height);
  open("svg", {{"xmlns", "http://www.w3.org/2000/svg"},
               {"viewBox", "0 0 " + width + " " + height},
               {"width", width},
               {"height", height},
               {"font-family", palette::font_family},
               {"role", "img"},
               {"aria-label", options.title}});
  element("title", {}, options.title);
  element("rect", {{"class", "background"},
                   {"width", options.width},
                   {"height", options.height},
                   {"fill", palette::background_colour}});
}

void SvgWriter::begin(std::string_view tag, Attributes attributes) {
  out_.append(open_.size(), ' ');
  out_ += "<";
  out_ += tag;
  for (const Attribute& attribute : attributes) {
    out_ += " ";
    out_ += attribute.name;
    out_ += "=\"" + xml_escape(attribute.value) + "\"";
  }
}

void SvgWriter::open(std::string_view tag, Attributes attributes) {
  begin(tag, attributes);
  out_ += ">\n";
  open_.emplace_back(tag);
}

void SvgWriter::close() {
  const std::string tag = open_.back();
  open_.pop_back();
  out_.append(open_.size(), ' ');
  out_ += "</" + tag + ">\n";
}

void SvgWriter::element(std::string_view tag, Attributes attributes) {
  begin(tag, attributes);
  out_ += "/>\n";
}

void SvgWriter::element(std::string_view tag, Attributes attributes, std::string_view content) {
  begin(tag, attributes);
  out_ += ">" + xml_escape(content) + "</";
  out_ += tag;
  out_ += ">\n";
}

void SvgWriter::text(double x, double y, std::string_view content, Attributes attributes) {
  std::string place = " x=\"" + svg_number(x) + "\" y=\"" + svg_number(y) + "\"";
  begin("text", attributes);
  out_ += place + ">" + xml_escape(content) + "</text>\n";
}

std::string SvgWriter::finish() && {
  while (!open_.empty()) close();
  return std::move(out_);
}

double text_width(std::string_view text, double font_size) {
  double width = 0;
  for (unsigned char c : text) {
    if ((c & 0xC0u) == 0x80u) continue;  // a continuation byte
    width += c == ' ' || c == '.' || c == ',' || c == 'i' || c == 'l' ? 0.34 : 0.62;
  }
  return width * font_size;
}

}  // namespace trestle::view
