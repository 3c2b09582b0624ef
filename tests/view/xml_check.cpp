#include "tests/view/xml_check.h"

#include <cctype>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::view {
namespace {

class Parser {
 public:
  explicit Parser(const std::string& content) : content_(content) {}

  XmlElement document() {
    blanks();
    XmlElement root = element();
    blanks();
    if (at_ != content_.size()) fail("something after the root element");
    return root;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(text("XML at byte ", at_, ": ", what));
  }
  char peek() const { return at_ < content_.size() ? content_[at_] : '\0'; }
  bool take(const std::string& what) {
    if (content_.compare(at_, what.size(), what) != 0) return false;
    at_ += what.size();
    return true;
  }
  void need(const std::string& what) {
    if (!take(what)) fail("expected " + what);
  }
  void blanks() {
    while (std::isspace(static_cast<unsigned char>(peek()))) ++at_;
  }

  std::string name() {
    const std::size_t begin = at_;
    while (std::isalnum(static_cast<unsigned char>(peek())) || peek() == '-' || peek() == ':')
      ++at_;
    if (at_ == begin) fail("expected a name");
    return content_.substr(begin, at_ - begin);
  }

  std::string character() {
    for (const auto& [entity, meaning] : std::map<std::string, std::string>{
             {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&#39;", "'"}}) {
      if (take(entity)) return meaning;
    }
    const auto c = static_cast<unsigned char>(peek());
    if (c == '&' || c == '<' || (c < 0x20 && !std::isspace(c)))
      fail("a character that must be escaped");
    ++at_;
    return std::string(1, static_cast<char>(c));
  }

  XmlElement element() {
    need("<");
    XmlElement result{.tag = name(), .attributes = {}, .text = {}, .children = {}};
    for (blanks(); peek() != '>' && peek() != '/'; blanks()) {
      const std::string key = name();
      need("=\"");
      std::string value;
      while (peek() != '"') value += character();
      need("\"");
      if (!result.attributes.emplace(key, value).second) fail("attribute " + key + " twice");
    }
    if (take("/>")) return result;
    need(">");
    while (!take("</")) {
      if (peek() == '<') {
        result.children.push_back(element());
      } else {
        result.text += character();
      }
    }
    need(result.tag + ">");
    result.text = trim(result.text);
    return result;
  }

  const std::string& content_;
  std::size_t at_ = 0;
};

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

XmlElement parse_xml(const std::string& content) { return Parser(content).document(); }

std::vector<const XmlElement*> find_all(const XmlElement& root, const std::string& tag,
                                        const std::string& class_word) {
  std::vector<const XmlElement*> found;
  collect(root, tag, class_word, found);
  return found;
}

}  // namespace trestle::view
