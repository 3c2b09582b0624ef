#include "tests/fuzz/fuzz.h"
#include "trestle/base/error.h"
#include "trestle/plan/balance.h"
#include "trestle/plan/stage_costs.h"

namespace trestle::plan {
namespace {

LayerProfile small_profile() {
  LayerProfile profile;
  for (int i = 0; i < 4; ++i) {
    profile.layers.push_back({.name = "layer", .forward = 0.5, .parameters = 8, .inner = 3});
    profile.values.push_back({.from = i - 1, .to = {i}, .saved_by = {i}, .bytes = 5});
  }
  profile.together = {{1, 2}};
  return profile;
}

// An accepted profile can be balanced, or is rejected as a model that cannot be cut.
TEST(Fuzz, LayerProfiles) {
  const auto result =
      fuzz::run({to_json(small_profile()), "{}", R"({"layers": [], "values": [], "together": []})"},
                [](std::string_view text) {
                  const LayerProfile profile = layer_profile_from_json(std::string(text));
                  EXPECT_EQ(to_json(layer_profile_from_json(to_json(profile))), to_json(profile));
                  try {
                    balance_by_time(profile, 2);
                    costs_of_cut(profile, balance_by_size(profile, 2, {.micro_batches = 4}));
                  } catch (const UsageError&) {
                  }
                });
  EXPECT_GT(result.accepted, 100);
  EXPECT_GT(result.refused, 1000);
}

}  // namespace
}  // namespace trestle::plan
