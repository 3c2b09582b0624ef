#include "trestle/plan/balance.h"

#include <algorithm>
#include <limits>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::plan {

std::vector<int> balance(const std::vector<double>& costs, int stages,
                         const std::vector<std::pair<int, int>>& together) {
  const int layers = static_cast<int>(costs.size());
  if (stages < 1) throw UsageError(text("a model cannot be cut into ", stages, " stages"));
  if (layers < stages) {
    throw UsageError(text("a model of ", layers, " layers cannot be cut into ", stages, " stages"),
                     {.hint = "Use at most one stage a layer, or split a layer into several."});
  }
  for (int i = 0; i < layers; ++i) {
    if (!(costs[i] >= 0))
      throw UsageError(text("layer ", i, " has the cost ", costs[i], ", which is no cost"));
  }
  std::vector<bool> may_cut(layers + 1, true);  // before layer i
  for (const auto& [first_layer, last_layer] : together) {
    for (int i = first_layer + 1; i <= last_layer; ++i) may_cut.at(i) = false;
  }
  std::vector<double> before(layers + 1, 0);  // before[i]: cost of the first i layers
  for (int i = 0; i < layers; ++i) before[i + 1] = before[i] + costs[i];

  // best[k][i]: the cheapest bottleneck of the layers from i on in k stages; first[k][i]: how many
  // the first one takes.
  constexpr double never = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(layers + 1, never));
  std::vector<std::vector<int>> first(stages + 1, std::vector<int>(layers + 1, 0));
  best[0][layers] = 0;
  for (int k = 1; k <= stages; ++k) {
    for (int i = layers - k; i >= 0; --i) {
      for (int end = i + 1; end <= layers - k + 1; ++end) {
        if (!may_cut[end]) continue;
        const double bottleneck = std::max(before[end] - before[i], best[k - 1][end]);
        if (bottleneck <=
            best[k][i]) {  // "or equal": the later end, so that earlier stages take more
          best[k][i] = bottleneck;
          first[k][i] = end - i;
        }
      }
    }
  }
  if (best[stages][0] == never) {
    throw UsageError(
        text("a model of ", layers, " layers, of which some share a parameter, cannot be cut into ",
             stages, " stages: there are only ",
             std::count(may_cut.begin() + 1, may_cut.end() - 1, true), " places to cut"),
        {.hint = "Use fewer devices."});
  }
  std::vector<int> result;
  for (int k = stages, i = 0; k > 0; --k) {
    result.push_back(first[k][i]);
    i += first[k][i];
  }
  return result;
}

}  // namespace trestle::plan
