#include "trestle/tokens/tokenizers/normalize_unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/tokens/tokenizers/code_points.h"

namespace trestle::tokens {
namespace {

// Characters whose normalization Unicode defined after version 9, up to 16. The tables of Hugging
// Face's normalizers are older, and there these characters stay as they are.
constexpr CodeRange newer_than_the_normalizer[] = {
    {0x7FD, 0x7FD},     {0x897, 0x897},     {0x898, 0x89F},     {0x8CA, 0x8D3},
    {0x9FE, 0x9FE},     {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},
    {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},
    {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x105C0, 0x105F3},
    {0x10781, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27},
    {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC}, {0x10EFC, 0x10EFC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x11380, 0x113E2}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11938, 0x11938},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16100, 0x16139}, {0x16D40, 0x16D79},
    {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF},
    {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

int utf8proc_options(Normalization form) {
  switch (form) {
    case Normalization::Nfc:
      return UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    case Normalization::Nfd:
      return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    case Normalization::Nfkc:
      return UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    case Normalization::Nfkd:
      return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  }
  return UTF8PROC_STABLE;
}

void append_normalized(std::string_view input, Normalization form, std::string* out) {
  if (input.empty()) return;
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(input.data()),
                   static_cast<utf8proc_ssize_t>(input.size()), &result,
                   static_cast<utf8proc_option_t>(utf8proc_options(form)));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length < 0) {
    throw UsageError(text("a text of ", input.size(),
                          " bytes could not be normalized: ", utf8proc_errmsg(length)),
                     {.hint = "Split the text into shorter ones."});
  }
  out->append(reinterpret_cast<const char*>(result), static_cast<std::size_t>(length));
}

}  // namespace

std::string normalize_unicode(std::string_view input, Normalization form) {
  const bool ascii = std::all_of(input.begin(), input.end(),
                                 [](char byte) { return static_cast<unsigned char>(byte) < 0x80; });
  if (ascii) return std::string(input);
  std::string out;
  out.reserve(input.size());
  std::size_t done = 0;
  for (std::size_t at = 0; at < input.size();) {
    const CodePoint next = code_point_at(input, at);
    if (is_in(newer_than_the_normalizer, next.code)) {
      append_normalized(input.substr(done, at - done), form, &out);
      out.append(input.substr(at, next.length));
      done = at + next.length;
    }
    at += next.length;
  }
  append_normalized(input.substr(done), form, &out);
  return out;
}

}  // namespace trestle::tokens
