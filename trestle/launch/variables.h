#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/launch/rank_environment.h"

// Reading environment variables with errors that name them. Inside of rank_environment.
namespace trestle::launch {

constexpr int most_ranks = 1'000'000;
constexpr int usual_port = 29500;  // torchrun's

using Names = std::vector<const char*>;

// A number and where it stands.
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

  // The first of these names that is set; UsageError where it is no whole number from `smallest` to
  // `largest`.
  std::optional<Number> find_number(const Names& names, int smallest, int largest) const;
  // The same; UsageError where none is set. `because` is what is set: "RANK=2".
  Number number(const Names& names, int smallest, int largest, std::string_view because) const;

  // MASTER_ADDR and MASTER_PORT, where they are set.
  std::optional<std::string> address() const;
  std::optional<int> port() const;

 private:
  const Variables& variables_;
};

// UsageError where a rank is not below the number of ranks: "RANK=4 is not below WORLD_SIZE=4".
void check_below(const Number& rank, const Number& size);

// A port that all who know the same words arrive at: 20000 to 32767, where systems do not give out
// ports by themselves.
int port_from(std::string_view words);

// Whether an address is of the machine itself.
bool is_own_machine(std::string_view address);

}  // namespace trestle::launch
