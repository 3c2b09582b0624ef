#include "trestle/data/arrays.h"

#include "trestle/train/data_sets/data_sets.h"

namespace trestle::train {

namespace {

OpenedData open_arrays(const recipe::Recipe& recipe) {
  const auto arrays =
      std::make_shared<data::ArrayDataset>(recipe.data.input_array, recipe.data.target_array);
  OpenedData opened = divide(recipe, arrays);
  opened.classes = arrays->classes();
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
      .open = open_arrays};
}

}  // namespace trestle::train
