#include <ATen/Functions.h>

#include <algorithm>

#include "trestle/checkpoint/dtypes.h"
#include "trestle/checkpoint/files/pickle/pickled_file.h"
#include "trestle/checkpoint/files/pickle/pickled_state_dict.h"
#include "trestle/checkpoint/weights_file.h"

namespace trestle::checkpoint {

namespace {

class TorchArchive : public WeightsFile {
 public:
  explicit TorchArchive(const std::filesystem::path& path) : file_(path) {
    const Pickle& pickle = file_.pickle();
    PickledStateDict found = find_state_dict(pickle, file_.path());
    others_ = std::move(found.others);
    std::vector<PickledFile::Named> named;
    for (const NamedPickledTensor& one : found.tensors) {
      const PickledTensor& tensor = pickle.tensors[one.tensor];
      tensors_.push_back(
          {one.name, scalar_type(pickle.storages[tensor.storage].dtype), tensor.shape});
      views_.push_back(tensor);
      named.push_back({one.name, one.tensor});
    }
    file_.check(named);
  }

 protected:
  std::vector<at::Tensor> load(const std::vector<std::size_t>& wanted) const override {
    std::vector<at::Tensor> by_number(tensors_.size());
    for_each_storage(wanted, [&](const at::Tensor& storage, std::size_t tensor) {
      by_number[tensor] = view(storage, tensor);
    });
    std::vector<at::Tensor> all;
    for (const std::size_t number : wanted) all.push_back(by_number[number]);
    return all;
  }

 private:
  at::Tensor view(const at::Tensor& storage, std::size_t tensor) const {
    const PickledTensor& view = views_[tensor];
    const at::Tensor values = at::as_strided(storage, view.shape, view.strides, view.offset);
    return view.negated ? values.neg() : values;
  }

  // Reads each storage once, and calls use(storage, tensor) for each tensor that is a view of it.
  template <class Use>
  void for_each_storage(std::vector<std::size_t> tensors, Use use) const {
    std::stable_sort(tensors.begin(), tensors.end(), [&](std::size_t a, std::size_t b) {
      return views_[a].storage < views_[b].storage;
    });
    at::Tensor storage;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::size_t number = views_[tensors[i]].storage;
      if (i == 0 || number != views_[tensors[i - 1]].storage) {
        storage = at::empty({static_cast<std::int64_t>(file_.pickle().storages[number].elements)},
                            at::dtype(tensors_[tensors[i]].type));
        file_.read_storage(number, storage.mutable_data_ptr(), storage.nbytes());
      }
      use(storage, tensors[i]);
    }
  }

  PickledFile file_;
  std::vector<PickledTensor> views_;  // one for each of tensors_
};

}  // namespace

std::unique_ptr<WeightsFile> open_torch_archive(const std::filesystem::path& path) {
  return std::make_unique<TorchArchive>(path);
}

}  // namespace trestle::checkpoint
