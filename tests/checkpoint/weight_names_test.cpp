#include "trestle/checkpoint/files/weight_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trestle/base/error.h"

namespace trestle::checkpoint {
namespace {

TEST(WeightNames, PrefixesOfWrappersAreRemoved) {
  EXPECT_EQ(without_wrappers("module.partitions.12.out.weight"), "out.weight");
  EXPECT_EQ(without_wrappers("model._orig_mod.module.w"), "w");
  EXPECT_EQ(without_wrappers("partitions.x.w"), "partitions.x.w");
  EXPECT_EQ(without_wrappers("partitions..w"), "partitions..w");
  EXPECT_EQ(without_wrappers("partitions.3"), "partitions.3");
  EXPECT_EQ(without_wrappers("modules.w"), "modules.w");
}

TEST(WeightNames, AreTranslatedOnlyIfMoreNamesMatchThen) {
  const Naming own = names_of({"module.w", "b"}, {"module.w", "c"});
  EXPECT_THAT(own.names, testing::ElementsAre("module.w", "b"));
  const Naming vision = names_of({"conv1.weight", "layer4.1.bn2.running_var", "fc.bias"},
                                 {"input_layer.conv1.weight", "output_layer.linear.bias"});
  EXPECT_EQ(vision.title, "torchvision's");
  EXPECT_THAT(vision.names,
              testing::ElementsAre("input_layer.conv1.weight", "basic_block42.norm2.running_var",
                                   "output_layer.linear.bias"));
}

TEST(WeightNames, TranslateInBothDirections) {
  for (const NameTable& table : name_tables()) {
    std::vector<std::string> theirs, ours;
    for (const auto& [their, our] : table.modules) {
      theirs.push_back(their + ".weight");
      ours.push_back(our + ".weight");
    }
    EXPECT_EQ(names_for(ours, table), theirs) << table.name;
    EXPECT_THROW(names_for({"nobody.weight"}, table), UsageError);
  }
}

// trestle's ResNet-50 has torchvision's names, its ResNet-18 does not.
TEST(WeightNames, AreKeptIfTheModelHasThemAlready) {
  for (const NameTable& table : name_tables())
    if (table.name == "torchvision") {
      const std::vector<std::string> theirs = {"conv1.weight", "layer1.0.conv1.weight", "fc.bias"};
      EXPECT_EQ(names_for(theirs, table), theirs);
      EXPECT_THROW(names_for({"conv1.weight", "input_layer.conv1.weight"}, table), UsageError);
    }
}

}  // namespace
}  // namespace trestle::checkpoint
