#include "trestle/nn/batch_norm_statistics.h"

#include <array>

#include "trestle/base/choose.h"

namespace trestle::nn {
namespace {

struct Named {
  std::string_view name;
  BatchNormStatistics statistics;
};
constexpr std::array table = {Named{"each_micro_batch", BatchNormStatistics::EachMicroBatch},
                              Named{"whole_batch", BatchNormStatistics::WholeBatch},
                              Named{"each_run", BatchNormStatistics::EachRun}};

}  // namespace

BatchNormStatistics parse_batch_norm_statistics(std::string_view name) {
  return choose("batch norm statistics", name, table).statistics;
}

std::vector<std::string> batch_norm_statistics_names() {
  std::vector<std::string> names;
  for (const Named& each : table) names.emplace_back(each.name);
  return names;
}

}  // namespace trestle::nn
