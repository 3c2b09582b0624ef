#include "tests/fuzz/fuzz.h"
#include "trestle/base/files.h"
#include "trestle/plan/machine/machine.h"

namespace trestle::plan {
namespace {

// An accepted file is written and read again without a difference.
TEST(Fuzz, Machines) {
  const std::string shipped =
      read_text_file(std::string(TRESTLE_SOURCE_DIR) + "/machines/a100-8-per-node.toml");
  const auto result =
      fuzz::run({shipped,
                 "[[block]]\nhidden = 1\nheads = 1\nsequence = 1\nmicro_batch = 1\ntensor = 1\n"
                 "seconds = 0.5\nis = \"measured\"\nfrom = \"x\"\n"},
                [](std::string_view text) {
                  const std::string written = to_toml(parse_machine(text, "fuzz.toml"));
                  EXPECT_EQ(to_toml(parse_machine(written, "again.toml")), written);
                },
                {.iterations = 5000, .longest = 16384});
  EXPECT_GT(result.accepted, 50);
  EXPECT_GT(result.refused, 1000);
}

}  // namespace
}  // namespace trestle::plan
