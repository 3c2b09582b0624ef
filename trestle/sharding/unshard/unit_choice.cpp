#include "trestle/sharding/unshard/unit_choice.h"

#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cctype>
#include <typeinfo>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/sharding/hooks/hooked.h"

namespace trestle::sharding {
namespace {

// "torch::nn::LinearImpl" -> "Linear".
std::string short_name(const std::string& type) {
  std::string name = type.substr(0, type.find('<'));
  if (const auto colon = name.rfind("::"); colon != std::string::npos) name.erase(0, colon + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.erase(name.size() - 4);
  return name;
}

}  // namespace

UnitChoice::UnitChoice(std::vector<std::string> wanted)
    : wanted_(std::move(wanted)), found_(wanted_.size(), false) {}

std::optional<UnitChoice::Match> UnitChoice::match(const std::string& name,
                                                   const torch::nn::Module& module) {
  const auto* const hooked = dynamic_cast<const HookedModule*>(&module);
  const std::string full =
      c10::demangle(hooked != nullptr ? hooked->unit_type().name() : typeid(module).name());
  for (const std::string& known : {name, short_name(full)})
    if (std::find(known_.begin(), known_.end(), known) == known_.end()) known_.push_back(known);
  std::optional<Match> match;
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    const std::string& wanted = wanted_[i];
    const bool by_prefix = name.starts_with(wanted + ".");
    if (!by_prefix && wanted != name && wanted != full && wanted != short_name(full) &&
        wanted != short_name(full) + "Impl")
      continue;
    found_[i] = true;
    if (!match) match = {.number = i, .by_prefix = by_prefix};
  }
  return match;
}

void UnitChoice::note_elsewhere(const std::string& name) {
  known_.push_back(name);
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    const bool may_be_type = std::isupper(static_cast<unsigned char>(wanted_[i].front())) != 0 ||
                             wanted_[i].find("::") != std::string::npos;
    if (may_be_type || name == wanted_[i] || name.starts_with(wanted_[i] + ".")) found_[i] = true;
  }
}

void UnitChoice::check() const {
  for (std::size_t i = 0; i < wanted_.size(); ++i)
    if (!found_[i]) throw_unknown("unit", wanted_[i], known_);
}

}  // namespace trestle::sharding
