#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/base/files.h"
#include "trestle/tokens/tokenizer.h"

// The fixtures of tests/golden/tokens (tools/golden/make_tokenizer_goldens.py).
namespace trestle::tokens {

inline std::filesystem::path golden_path(std::string_view name) {
  return std::filesystem::path(TRESTLE_SOURCE_DIR) / "tests/golden/tokens" / name;
}

inline std::string golden_file(std::string_view name) { return read_file(golden_path(name)); }

inline nlohmann::json golden_json(std::string_view name) {
  return nlohmann::json::parse(golden_file(name));
}

inline std::vector<std::string> golden_strings() {
  return golden_json("strings.json").get<std::vector<std::string>>();
}

inline std::string from_hex(std::string_view digits) {
  std::string out;
  constexpr int base = 16;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    out += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, base));
  }
  return out;
}

}  // namespace trestle::tokens
