#pragma once

#include <map>
#include <string>
#include <vector>

// XML as tests look at it, read with Expat, which refuses whatever is not well-formed. (pugixml
// takes a bare & and a < inside an attribute, which are the very mistakes a writer can make.)
namespace trestle::view {

struct XmlElement {
  std::string tag;
  std::map<std::string, std::string> attributes;  // unescaped
  std::string text;  // unescaped, its own only, without surrounding white space
  std::vector<XmlElement> children;

  std::string attribute(const std::string& name) const;  // "" where there is none
};

// The root element. Throws FormatError, with the line, for anything that is not well-formed.
XmlElement parse_xml(const std::string& content);

// All elements under (and with) `root` with that tag and that word in their class; "" stands for
// any.
std::vector<const XmlElement*> find_all(const XmlElement& root, const std::string& tag,
                                        const std::string& class_word = "");

}  // namespace trestle::view
