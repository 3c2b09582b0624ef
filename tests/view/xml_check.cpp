#include "tests/view/xml_check.h"

#include <expat.h>

#include <memory>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::view {
namespace {

// The open elements, the innermost last. The first one stands for the document.
using Open = std::vector<XmlElement>;

void begin(void* data, const char* tag, const char** attributes) {
  XmlElement element{.tag = tag, .attributes = {}, .text = {}, .children = {}};
  for (; *attributes != nullptr; attributes += 2) element.attributes[attributes[0]] = attributes[1];
  static_cast<Open*>(data)->push_back(std::move(element));
}

void end(void* data, const char*) {
  Open& open = *static_cast<Open*>(data);
  XmlElement element = std::move(open.back());
  open.pop_back();
  element.text = trim(element.text);
  open.back().children.push_back(std::move(element));
}

void characters(void* data, const char* text, int length) {
  static_cast<Open*>(data)->back().text.append(text, static_cast<std::size_t>(length));
}

bool has_word(const std::string& words, const std::string& word) {
  return (" " + words + " ").find(" " + word + " ") != std::string::npos;
}

void collect(const XmlElement& element, const std::string& tag, const std::string& class_word,
             std::vector<const XmlElement*>& found) {
  const bool class_fits = class_word.empty() || has_word(element.attribute("class"), class_word);
  if ((tag.empty() || element.tag == tag) && class_fits) found.push_back(&element);
  for (const XmlElement& child : element.children) collect(child, tag, class_word, found);
}

}  // namespace

std::string XmlElement::attribute(const std::string& name) const {
  const auto found = attributes.find(name);
  return found == attributes.end() ? "" : found->second;
}

XmlElement parse_xml(const std::string& content) {
  const std::unique_ptr<XML_ParserStruct, decltype(&XML_ParserFree)> parser(
      XML_ParserCreate("UTF-8"), XML_ParserFree);
  Open open(1);
  XML_SetUserData(parser.get(), &open);
  XML_SetElementHandler(parser.get(), begin, end);
  XML_SetCharacterDataHandler(parser.get(), characters);
  if (XML_Parse(parser.get(), content.data(), static_cast<int>(content.size()), XML_TRUE) !=
      XML_STATUS_OK) {
    throw FormatError(text("line ", XML_GetCurrentLineNumber(parser.get()), ": ",
                           XML_ErrorString(XML_GetErrorCode(parser.get()))));
  }
  return open[0].children.at(0);
}

std::vector<const XmlElement*> find_all(const XmlElement& root, const std::string& tag,
                                        const std::string& class_word) {
  std::vector<const XmlElement*> found;
  collect(root, tag, class_word, found);
  return found;
}

double number(const XmlElement& element, const std::string& name) {
  return std::stod(element.attribute(name));
}

double number(const XmlElement* element, const std::string& name) { return number(*element, name); }

std::vector<std::string> texts(const XmlElement& root) {
  std::vector<std::string> result;
  for (const XmlElement* element : find_all(root, "text")) result.push_back(element->text);
  return result;
}

}  // namespace trestle::view
