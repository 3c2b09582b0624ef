#include "trestle/train/data_on_paper.h"

#include <ATen/Functions.h>

#include <iterator>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/data_sets/find_data.h"
#include "trestle/train/task.h"

namespace trestle::train {

DataOnPaper look_at_data(const recipe::Recipe& recipe, const UserParts& own) {
  const DataSet set = find_data_set(recipe.data.name, own);
  DataOnPaper data;
  recipe::Recipe found = recipe;
  OpenedData opened;
  try {
    found.data = data_that_are_there(recipe, own);
    opened = set.open(found);
  } catch (const UsageError& error) {
    // Other errors are faults of the recipe, which training reports too.
    if (!set.usual_input || !data_are_missing(set, recipe)) throw;
    const std::vector<std::int64_t> sizes = set.usual_input(recipe);
    data.missing = split(error.what(), '\n')[0];
    const bool tokens = set.predicts == Predicts::Token;
    data.example = at::zeros({1}, tokens ? at::kLong : at::kFloat).expand(sizes).unsqueeze(0);
    if (tokens) data.sample.target = data.example[0];
    // For the memory of the loss. Losses that take masks of another type are not measured then.
    if (set.predicts == Predicts::Mask)
      data.sample.target = at::zeros({1}, at::kLong).expand(at::IntArrayRef(sizes).slice(1));
    return data;
  }
  check_examples(found, opened);
  data.synthetic = synthetic_data_of(found, own).value_or("");
  data.training = std::ssize(opened.training.indices);
  data.validation = std::ssize(opened.validation.indices);
  data.sample = opened.training.dataset->get(opened.training.indices.at(0));
  data.example = data.sample.input.unsqueeze(0);
  return data;
}

}  // namespace trestle::train
