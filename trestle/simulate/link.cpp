#include "trestle/simulate/link.h"

#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"

namespace trestle::simulate {
namespace {

// The number of each unit in a second.
constexpr std::array<std::pair<std::string_view, double>, 3> time_units = {
    {{"us", 1e6}, {"ms", 1e3}, {"s", 1}}};
constexpr double longest_latency = 60;

[[noreturn]] void refuse_link(std::string_view text, const std::string& why) {
  throw UsageError(
      trestle::text("link '", text.substr(0, 100), "': ", why),
      {.hint = "Write the bandwidth and the time of a message from one host to another, for "
               "example 100Mbit,5ms or 1Gbit,50us."});
}

// Nothing but "0" may leave out the unit.
double parse_latency(std::string_view text, const std::string& word) {
  const auto refuse = [&] {
    refuse_link(text,
                trestle::text("'", word, "' is not a time between hosts, such as 5ms or 50us"));
  };
  if (word == "0") return 0;
  if (word.empty() || word[0] < '0' || word[0] > '9') refuse();
  double number = 0;
  const char* const end = word.data() + word.size();
  const auto [rest, failure] = std::from_chars(word.data(), end, number, std::chars_format::fixed);
  if (failure != std::errc{}) refuse();
  const std::string unit = trim(std::string_view(rest, static_cast<std::size_t>(end - rest)));
  for (const auto& [name, factor] : time_units) {
    if (unit != name) continue;
    if (number / factor > longest_latency)
      refuse_link(text, trestle::text("a message takes ", format_duration(number / factor),
                                      ", longer than ", format_duration(longest_latency)));
    return number / factor;
  }
  refuse();
  return 0;
}

}  // namespace

Link parse_link(std::string_view text) {
  const std::vector<std::string> words = split(text, ',');
  if (words.size() > 2)
    refuse_link(text, trestle::text("it has ", words.size(), " parts between commas"));
  Link link;
  try {
    link.bandwidth = parse_bandwidth(words[0]);
  } catch (const UsageError&) {
    refuse_link(text, trestle::text("'", trim(words[0]),
                                    "' is not a bandwidth such as 100Mbit or 12.5MB/s"));
  }
  if (words.size() == 2) link.latency = parse_latency(text, trim(words[1]));
  return link;
}

// A packet has 1538 bytes on the wire, 1448 of them of the message. Each second one is acknowledged
// by one of 84.
Link without_headers(Link link) {
  constexpr double packet = 1538, message = 1448, acknowledgement = 84;
  link.bandwidth *= message / packet;
  link.both_ways = 2 * packet / (2 * packet + acknowledgement);
  return link;
}

std::string to_string(const Link& link) {
  return text(link.bandwidth > 0 ? format_bandwidth(link.bandwidth) : "unlimited bandwidth",
              " and ", format_duration(link.latency), " each way");
}

}  // namespace trestle::simulate
