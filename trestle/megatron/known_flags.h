#pragma once

#include <string>
#include <string_view>
#include <vector>

// The flags of Megatron-LM that trestle knows. Not installed.
namespace trestle::megatron {

struct KnownFlag {
  enum class Kind {
    Read,     // a key of the recipe depends on it
    Idle,     // it changes no number
    Refused,  // trestle would compute something else
  };
  enum class Values { None, One, Several };

  std::string_view name;
  Kind kind = Kind::Read;
  Values values = Values::One;
  std::string_view reason = {};  // Idle: what trestle does instead; Refused: why, and the nearest
};

// Null for a flag that is not known.
const KnownFlag* find_known(std::string_view name);

const std::vector<KnownFlag>& known_flags();

// Why all flags with this beginning are refused, such as those of mixtures of experts. Empty if
// `name` belongs to none of these families.
std::string_view why_family_is_refused(std::string_view name);

}  // namespace trestle::megatron
