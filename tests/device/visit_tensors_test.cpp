#include "trestle/device/detail/visit_tensors.h"

#include <ATen/ops/full.h>

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <list>
#include <map>
#include <string>

namespace trestle {
namespace {

using at::Tensor;

static_assert(contains_only_tensors<Tensor> && contains_only_tensors<std::list<Tensor>>);
static_assert(contains_only_tensors<std::map<std::string, std::array<Tensor, 2>>>);
static_assert(contains_tensors<std::tuple<int, std::optional<Tensor>>>);
static_assert(!contains_only_tensors<std::tuple<int, std::optional<Tensor>>>);
static_assert(!contains_tensors<std::vector<bool>> && !contains_tensors<std::string>);
static_assert(!contains_tensors<std::filesystem::path>);
static_assert(!contains_tensors<at::TensorList>);  // a view, whose elements cannot be replaced

using Nested = std::tuple<std::vector<Tensor>, int, std::map<std::string, std::pair<Tensor, float>>,
                          std::optional<Tensor>>;

Nested nested() {
  return {{at::full({1}, 1), Tensor()}, 7, {{"a", {at::full({1}, 2), 0.5F}}}, std::nullopt};
}

TEST(VisitTensors, FindsAndReplacesNestedTensorsInOrder) {
  Nested value = nested();
  const std::vector<Tensor> found = tensors_in(value);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].item<int>(), 1);
  EXPECT_FALSE(found[1].defined());
  EXPECT_EQ(found[2].item<int>(), 2);
  put_tensors(value, {at::full({1}, 4), at::full({1}, 5), at::full({1}, 6)});
  EXPECT_EQ(std::get<0>(value)[1].item<int>(), 5);
  EXPECT_EQ(std::get<2>(value).at("a").first.item<int>(), 6);
}

TEST(VisitTensors, TheStructureTellsValuesApart) {
  const auto structure_of = [](const Nested& value) {
    std::vector<std::size_t> numbers;
    visit_tensors(
        value, [](const Tensor&) {}, [&](std::size_t number) { numbers.push_back(number); });
    return numbers;
  };
  const auto expected = structure_of(nested());
  EXPECT_EQ(structure_of(nested()), expected);
  Nested longer = nested(), given = nested(), renamed = nested();
  std::get<0>(longer).emplace_back();
  std::get<3>(given) = Tensor();
  std::get<2>(renamed) = {{"b", {Tensor(), 0.F}}};
  EXPECT_NE(structure_of(longer), expected);
  EXPECT_NE(structure_of(given), expected);
  EXPECT_NE(structure_of(renamed), expected);
}

}  // namespace
}  // namespace trestle
