#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/launch/rank_environment.h"

// Reads environment variables, with errors that name them. Used by rank_environment.cpp only.
namespace trestle::launch {

constexpr int most_ranks = 1'000'000;
constexpr int default_port = 29500;  // as in torchrun

using Names = std::vector<const char*>;

// A number and the variable that it was read from.
struct Number {
  std::string name;
  int value = 0;
  std::string words() const { return name + "=" + std::to_string(value); }
};

class VariableReader {
 public:
  explicit VariableReader(const Variables& variables) : variables_(variables) {}

  std::optional<std::string> find(const std::string& name) const { return variables_(name); }
  bool has(const std::string& name) const { return variables_(name).has_value(); }

  // The first of these variables that is set. Throws UsageError unless it is a whole number from
  // `smallest` to `largest`.
  std::optional<Number> find_number(const Names& names, int smallest, int largest) const;
  // Also throws UsageError if none is set. `because` is the variable that requires it: "RANK=2".
  Number number(const Names& names, int smallest, int largest, std::string_view because) const;

  // MASTER_ADDR and MASTER_PORT, if set.
  std::optional<std::string> address() const;
  std::optional<int> port() const;

 private:
  const Variables& variables_;
};

// Throws UsageError unless the rank is below the number of ranks: "RANK=4 is not below
// WORLD_SIZE=4".
void check_below(const Number& rank, const Number& size);

// A port derived from `words`, from 20000 to 32767: below the range of ephemeral ports.
int port_from(std::string_view words);

// Whether an address is a loopback address.
bool is_own_machine(std::string_view address);

}  // namespace trestle::launch
