#include "trestle/launch/variables.h"

#include <charconv>
#include <cstdint>

#include "trestle/base/error.h"
#include "trestle/base/fnv1a.h"
#include "trestle/base/text.h"

namespace trestle::launch {

std::optional<Number> VariableReader::find_number(const Names& names, int smallest,
                                                  int largest) const {
  for (const char* name : names) {
    const std::optional<std::string> words = variables_(name);
    if (!words) continue;
    Number number{.name = name};
    const char* const end = words->data() + words->size();
    const auto [behind, error] = std::from_chars(words->data(), end, number.value);
    if (error != std::errc() || behind != end || number.value < smallest || number.value > largest)
      throw UsageError(text("environment variable ", name, "=", words->substr(0, 100),
                            ": not a whole number from ", smallest, " to ", largest));
    return number;
  }
  return std::nullopt;
}

Number VariableReader::number(const Names& names, int smallest, int largest,
                              std::string_view because) const {
  if (const auto number = find_number(names, smallest, largest)) return *number;
  throw UsageError(
      text("environment variable ", join(names, " or "), " is not set, but ", because, " is"),
      {.hint = "Set both, or unset both to run as one rank."});
}

std::optional<std::string> VariableReader::address() const {
  std::optional<std::string> address = variables_("MASTER_ADDR");
  if (address && trim(*address).empty())
    throw UsageError("environment variable MASTER_ADDR is empty",
                     {.hint = "It is the host name or address of rank 0's machine."});
  return address;
}

std::optional<int> VariableReader::port() const {
  const auto port = find_number({"MASTER_PORT"}, 1, 65535);
  return port ? std::optional(port->value) : std::nullopt;
}

void check_below(const Number& rank, const Number& size) {
  if (rank.value >= size.value)
    throw UsageError(text("environment variables: ", rank.words(), " is not below ", size.words()));
}

int port_from(std::string_view words) {
  constexpr int first = 20000, behind_last = 32768;
  std::uint64_t hash = fnv1a(words);
  hash ^= hash >> 32;
  return first + static_cast<int>(hash % (behind_last - first));
}

bool is_own_machine(std::string_view address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

}  // namespace trestle::launch
