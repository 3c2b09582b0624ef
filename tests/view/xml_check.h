#pragma once

#include <map>
#include <string>
#include <vector>

// Parses XML with Expat, which rejects malformed input. (pugixml accepts a bare & and a < inside an
// attribute, which are the mistakes that a writer can make.)
namespace trestle::view {

struct XmlElement {
  std::string tag;
  std::map<std::string, std::string> attributes;  // unescaped
  std::string text;  // unescaped, without child elements and surrounding white space
  std::vector<XmlElement> children;

  std::string attribute(const std::string& name) const;  // "" if it has none
};

// The root element. Throws FormatError with the line for malformed input.
XmlElement parse_xml(const std::string& content);

// All elements below and including `root` with that tag and that word in their class; "" matches
// any.
std::vector<const XmlElement*> find_all(const XmlElement& root, const std::string& tag,
                                        const std::string& class_word = "");

// A numeric attribute.
double number(const XmlElement& element, const std::string& name);
double number(const XmlElement* element, const std::string& name);

// The contents of all text elements below `root`.
std::vector<std::string> texts(const XmlElement& root);

}  // namespace trestle::view
