#include "trestle/train/data_sets/example_sizes.h"

#include "trestle/base/error.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/data_sets/find_data.h"

namespace trestle::train {

std::vector<std::int64_t> example_sizes(const recipe::Recipe& recipe, const UserParts& own) {
  const DataSet set = find_data_set(recipe.data.name, own);
  try {
    recipe::Recipe found = recipe;
    found.data = data_that_are_there(recipe, own);
    const OpenedData opened = set.open(found);
    return opened.training.dataset->get(opened.training.indices.at(0)).input.sizes().vec();
  } catch (const UsageError&) {
    if (!set.usual_input) throw;
    return set.usual_input(recipe);
  }
}

}  // namespace trestle::train
