#include "trestle/train/run_folder/saved_cut.h"

#include <cmath>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::train {
namespace {

std::string name_in_state(std::size_t stage) { return text("layers_of_stage_", stage); }

}  // namespace

void save_cut(const std::vector<int>& balance, std::map<std::string, double>& numbers) {
  for (std::size_t stage = 0; stage < balance.size(); ++stage)
    numbers[name_in_state(stage)] = balance[stage];
}

std::vector<int> saved_cut(const std::map<std::string, double>& numbers) {
  std::vector<int> balance;
  for (;;) {
    const auto found = numbers.find(name_in_state(balance.size()));
    if (found == numbers.end()) return balance;
    const double layers = found->second;
    if (!(layers >= 1 && layers <= 1e9) || std::floor(layers) != layers)
      throw FormatError(
          text("the state of the run has ", layers, " layers of stage ", balance.size()));
    balance.push_back(static_cast<int>(layers));
  }
}

}  // namespace trestle::train
