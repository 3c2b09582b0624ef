#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

// Not installed.
namespace trestle::tokens {

// A value of a JSON file with its path, for messages: "field 'model.vocab' is not an object". All
// functions throw FormatError with the file if the value is of another type.
class JsonField {
 public:
  // The whole file. `json` must outlive the field and all that come from it.
  JsonField(const nlohmann::json& json, std::string file) : json_(&json), file_(std::move(file)) {}

  bool is_null() const { return json_->is_null(); }
  bool is_string() const { return json_->is_string(); }
  bool is_object() const { return json_->is_object(); }
  bool is_array() const { return json_->is_array(); }
  bool has(std::string_view name) const;  // a member that is not null

  JsonField at(std::string_view name) const;  // throws if there is none
  JsonField at(std::size_t index) const;
  std::size_t size() const;  // of an array

  const std::string& string() const;
  std::int64_t integer() const;
  bool boolean() const;
  const nlohmann::json& object() const;
  const nlohmann::json& array() const;

  // A member, or a value that holds where the file has none or null.
  std::string string_or(std::string_view name, std::string_view otherwise) const;
  enum class Otherwise { False, True };
  bool boolean_or(std::string_view name, Otherwise otherwise) const;

  // "field 'x' is Y, which trestle does not support", with a hint.
  [[noreturn]] void refuse(std::string_view what, std::string_view hint) const;
  [[noreturn]] void invalid(std::string_view what) const;

  const std::string& file() const { return file_; }
  const std::string& path() const { return path_; }

 private:
  const nlohmann::json* json_;
  std::string file_;
  std::string path_;
};

// Parses JSON. Throws FormatError with the file and the place.
nlohmann::json parse_json(std::string_view content, const std::string& file);

}  // namespace trestle::tokens
