// Tables against those of torch.distributed.pipelining (tools/golden/make_schedule_goldens.py).
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/schedule/csv.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/validate.h"

namespace trestle::schedule {
namespace {

struct Golden {
  std::string name;
  int ranks = 0, chunks = 0, micro_batches = 0;
  bool refused = false;
  std::string rows;
};

std::vector<Golden> goldens() {
  std::istringstream text(
      read_text_file(std::string(TRESTLE_SOURCE_DIR) + "/tests/golden/schedules/torch.txt"));
  std::vector<Golden> all;
  for (std::string line; std::getline(text, line);) {
    if (!line.starts_with("# ")) {
      all.back().rows += line + "\n";
      continue;
    }
    std::istringstream words(line.substr(2));
    Golden& one = all.emplace_back();
    std::string refused;
    words >> one.name >> one.ranks >> one.chunks >> one.micro_batches >> refused;
    one.refused = refused == "refused";
  }
  return all;
}

Schedule made(const Golden& golden) {
  return generate(golden.name, {.stages = golden.ranks * golden.chunks,
                                .micro_batches = golden.micro_batches,
                                .stages_per_rank = golden.chunks});
}

TEST(TorchTables, AreEqualActionByAction) {
  std::map<std::string, int> compared;
  for (const Golden& golden : goldens()) {
    if (golden.refused) continue;
    // PyTorch's backwards of GPipe run in the order of the forwards.
    const GenerateOptions options{
        .stages = golden.ranks * golden.chunks,
        .micro_batches = golden.micro_batches,
        .backward_order = golden.name == "gpipe" ? BackwardOrder::Forward : BackwardOrder::Reverse,
        .stages_per_rank = golden.chunks};
    const Schedule table = generate(golden.name, options);
    EXPECT_EQ(to_csv(table), golden.rows) << golden.name << " " << golden.ranks << " "
                                          << golden.chunks << " " << golden.micro_batches;
    EXPECT_NO_THROW(validate(table)) << golden.name;
    ++compared[golden.name];
  }
  EXPECT_EQ(compared.size(), 7U);
  for (const auto& [name, count] : compared) EXPECT_GE(count, 14) << name;
}

// PyTorch refuses 1F1B with fewer micro-batches than stages, which is legal here.
TEST(TorchTables, AreRefusedWherePyTorchRefuses) {
  int refused = 0;
  for (const Golden& golden : goldens()) {
    if (!golden.refused) continue;
    if (golden.name == "1f1b") {
      EXPECT_NO_THROW(validate(made(golden)));
      continue;
    }
    ++refused;
    // With one stage on each rank every number of micro-batches is legal here.
    if (golden.chunks == 1)
      EXPECT_NO_THROW(validate(made(golden)));
    else
      EXPECT_THROW(made(golden), UsageError) << golden.name << " " << golden.micro_batches;
  }
  EXPECT_GE(refused, 10);
}

}  // namespace
}  // namespace trestle::schedule
