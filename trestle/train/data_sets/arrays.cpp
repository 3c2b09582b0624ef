#include "trestle/data/arrays.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/segmentation.h"
#include "trestle/train/data_sets/data_sets.h"

namespace trestle::train {

namespace {

OpenedData open_arrays(const recipe::Recipe& recipe) {
  const auto arrays =
      std::make_shared<data::ArrayDataset>(recipe.data.input_array, recipe.data.target_array);
  OpenedData opened = divide(recipe, arrays);
  opened.classes = arrays->classes();
  const bool has_classes = classes_to_check(recipe, 1) > 0;
  const std::int64_t ignored = has_classes ? arrays->ignored_count() : 0;
  const std::int64_t all = arrays->target_count();
  if (ignored > 0 && ignored == all)
    throw UsageError(text(recipe.data.target_array, ": ", data::describe_ignored(ignored, all)),
                     {.hint = "No target is left to learn from. Classes count from 0."});
  if (ignored > 0) opened.notes.push_back("targets   " + data::describe_ignored(ignored, all));
  return opened;
}

}  // namespace

// NumPy's arrays, or torch.save's.
DataSet arrays_set() {
  return {
      .name = "arrays",
      .summary =
          "two arrays, NumPy's (.npy, or in an .npz) or of torch.save (.pt): inputs and targets "
          "by their first dimension",
      .loss = "cross_entropy",
      .metric = "accuracy",
      .predicts = Predicts::Class,
      .paths = {"input_array", "target_array"},
      .keys = {"validation", "split_seed"},
      .open = open_arrays};
}

}  // namespace trestle::train
