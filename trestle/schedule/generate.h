#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trestle/schedule/schedule.h"

// Makes schedules by name. A new file in generators/ adds one.
namespace trestle::schedule {

// The order of GPipe's backwards. Reverse: as torchgpipe, the last micro-batch first (keeps
// except_last to one live micro-batch). Forward: as PyTorch.
enum class BackwardOrder { Reverse, Forward };

// "reverse" or "forward". Throws UsageError for another word.
BackwardOrder parse_backward_order(std::string_view name);
std::vector<std::string> backward_order_names();

struct GenerateOptions {
  int stages = 1;                                         // >= 1
  int micro_batches = 1;                                  // >= 1; may be fewer than stages
  BackwardOrder backward_order = BackwardOrder::Reverse;  // read by "gpipe" only
};

// Only compute actions; lower() adds the rest. Throws UsageError for an unknown name (and suggests
// the nearest) and for options that the schedule does not allow.
Schedule generate(std::string_view name, const GenerateOptions& options);

// The schedules that generate() makes, sorted by name.
struct ScheduleInfo {
  std::string name;
  std::string summary;
  // True if every backward comes after the last forward, so that a whole-batch loss is possible.
  bool all_forwards_first = false;
};
const std::vector<ScheduleInfo>& known_schedules();

}  // namespace trestle::schedule
