#include "trestle/tokens/tokenizers/json_field.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::tokens {

nlohmann::json parse_json(std::string_view content, const std::string& file) {
  try {
    return nlohmann::json::parse(content);
  } catch (const nlohmann::json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: ..."
    std::string_view what = error.what();
    if (what.starts_with('[')) what.remove_prefix(std::min(what.find("] ") + 2, what.size()));
    throw FormatError(text("not valid JSON: ", what), {.file = file});
  }
}

void JsonField::invalid(std::string_view what) const {
  throw FormatError(text("field '", path_.empty() ? "(all)" : path_, "' ", what), {.file = file_});
}

void JsonField::refuse(std::string_view what, std::string_view hint) const {
  throw FormatError(text("field '", path_, "' is ", what, ", which trestle does not support"),
                    {.file = file_, .hint = std::string(hint)});
}

bool JsonField::has(std::string_view name) const {
  const auto found = object().find(name);
  return found != json_->end() && !found->is_null();
}

JsonField JsonField::at(std::string_view name) const {
  const auto found = object().find(name);
  if (found == json_->end()) invalid(text("has no member '", name, "'"));
  JsonField field(*this);
  field.json_ = &*found;
  field.path_ = path_.empty() ? std::string(name) : text(path_, ".", name);
  return field;
}

JsonField JsonField::at(std::size_t index) const {
  if (index >= size()) invalid(text("has ", size(), " elements, not ", index + 1));
  JsonField field(*this);
  field.json_ = &(*json_)[index];
  field.path_ = text(path_, "[", index, "]");
  return field;
}

std::size_t JsonField::size() const { return array().size(); }

const std::string& JsonField::string() const {
  if (!json_->is_string()) invalid("is not a string");
  return json_->get_ref<const std::string&>();
}

std::int64_t JsonField::integer() const {
  if (!json_->is_number_integer()) invalid("is not an integer");
  if (json_->is_number_unsigned() && json_->get<std::uint64_t>() > std::uint64_t{INT64_MAX}) {
    invalid("is out of range");
  }
  return json_->get<std::int64_t>();
}

bool JsonField::boolean() const {
  if (!json_->is_boolean()) invalid("is not true or false");
  return json_->get<bool>();
}

const nlohmann::json& JsonField::object() const {
  if (!json_->is_object()) invalid("is not an object");
  return *json_;
}

const nlohmann::json& JsonField::array() const {
  if (!json_->is_array()) invalid("is not an array");
  return *json_;
}

std::string JsonField::string_or(std::string_view name, std::string_view otherwise) const {
  return has(name) ? at(name).string() : std::string(otherwise);
}

bool JsonField::boolean_or(std::string_view name, Otherwise otherwise) const {
  return has(name) ? at(name).boolean() : otherwise == Otherwise::True;
}

}  // namespace trestle::tokens
