#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trestle/schedule/schedule.h"

// Makes schedules by name. A new file in generators/ adds one.
namespace trestle::schedule {

// The order of GPipe's backwards. Reverse: the last micro-batch first, as in torchgpipe; with
// except_last only one micro-batch is live then. Forward: as in PyTorch.
enum class BackwardOrder { Reverse, Forward };

// "reverse" or "forward". Throws UsageError for any other word.
BackwardOrder parse_backward_order(std::string_view name);
std::vector<std::string> backward_order_names();

// The places of a rank's stages in the model. Loop: rank r of p has the stages r, r + p, r + 2p,
// ... V: it has the stages r and 2p - 1 - r, so that the first rank has the last stage too.
enum class StageOrder { Loop, V };

struct GenerateOptions {
  int stages = 1;                                         // >= 1
  int micro_batches = 1;                                  // >= 1; may be fewer than stages
  BackwardOrder backward_order = BackwardOrder::Reverse;  // used by "gpipe" and "looped_bfs" only
  int stages_per_rank = 1;                                // divides `stages`
};

// Returns compute actions only; lower() adds communication. Throws UsageError for an unknown name
// (with the nearest one), for a table of more than 4,194,304 forwards, and for options that the
// schedule does not support, with the nearest legal numbers.
Schedule generate(std::string_view name, const GenerateOptions& options);

// The schedules that generate() makes, sorted by name.
struct ScheduleInfo {
  std::string name;
  std::string summary;
  // True if all forwards come before the first backward, so that a whole-batch loss is possible.
  bool all_forwards_first = false;
  bool splits_backward = false;  // has I and W in place of some B
  std::string sizes = {};        // which numbers of stages and micro-batches it takes
  int stages_per_rank = 1;       // which it needs; 0 = any
  StageOrder stage_order = StageOrder::Loop;
};
const std::vector<ScheduleInfo>& known_schedules();

// `given`, or for 0 the number that the schedule needs, and 2 if it takes any. 1 for an unknown
// name.
int stages_per_rank(std::string_view name, int given);

// [stage] its rank in the schedule's tables. Throws UsageError as generate() does.
std::vector<int> ranks_of_stages(std::string_view name, int stages, int stages_per_rank);

}  // namespace trestle::schedule
