#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

// Untrusted JSON. Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// Deeper values are rejected: printing or copying one takes stack for each level.
inline constexpr int deepest_json = 32;

// Parses one JSON object without duplicate keys. nlohmann would keep the last of two equal keys,
// and a file with two tensors of one name is a mistake or an attack. Throws FormatError that begins
// with `what` ("its header").
inline nlohmann::json parse_object(std::string_view bytes, const std::string& what,
                                   const std::string& file) {
  using nlohmann::json;
  std::vector<std::set<std::string>> keys;
  std::string twice;
  bool is_twice = false;
  auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > deepest_json)
      throw FormatError(text(what, " has values more than ", deepest_json, " levels deep"),
                        {.file = file});
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key &&
        !keys.back().insert(parsed.get<std::string>()).second) {
      twice = parsed.get<std::string>();
      is_twice = true;
    }
    return true;
  };
  json object;
  try {
    object = json::parse(bytes, watch);
  } catch (const json::exception& error) {
    const std::string_view words = error.what();  // without the library's "[...] " prefix
    throw FormatError(text(what, " is not JSON (",
                           bytes.empty() ? "it is empty" : words.substr(words.find("] ") + 2), ")"),
                      {.file = file});
  }
  if (is_twice) throw FormatError(text(what, " has the key '", twice, "' twice"), {.file = file});
  if (!object.is_object()) throw FormatError(text(what, " is not a JSON object"), {.file = file});
  return object;
}

// A number of elements or bytes: not negative, and small enough that sums of a few do not overflow.
inline bool is_count(const nlohmann::json& value) {
  return value.is_number_unsigned() && value.get<std::uint64_t>() <= (std::uint64_t{1} << 62);
}

}  // namespace trestle::checkpoint
