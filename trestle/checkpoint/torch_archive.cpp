#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/dtypes.h"
#include "trestle/checkpoint/files/pickled_state_dict.h"
#include "trestle/checkpoint/files/safetensors_header.h"
#include "trestle/checkpoint/files/zip_file.h"
#include "trestle/checkpoint/weights_file.h"

namespace trestle::checkpoint {

namespace {

class TorchArchive : public WeightsFile {
 public:
  explicit TorchArchive(const std::filesystem::path& path)
      : zip_(path), folder_(zip_.folder_of("data.pkl")) {
    refuse_others();
    const std::uint64_t length = zip_.size(folder_ + "data.pkl");
    if (length > longest_pickle)
      fail(text("it describes its tensors in ", length, " bytes, more than the ", longest_pickle,
                " that are read"));
    const std::string bytes = zip_.read(folder_ + "data.pkl");
    Pickle pickle = parse_pickle(bytes, zip_.path());
    PickledStateDict found = find_state_dict(pickle, zip_.path());
    others_ = std::move(found.others);
    for (const NamedPickledTensor& named : found.tensors) {
      PickledTensor& tensor = pickle.tensors[named.tensor];
      const std::string& dtype = pickle.storages[tensor.storage].dtype;
      check_size(named.name, tensor, dtype);
      tensors_.push_back({named.name, scalar_type(dtype), tensor.shape});
      views_.push_back(tensor);
    }
    storages_.assign(pickle.storages.begin(), pickle.storages.end());
    check_storages();
  }

  NamedTensors read() const override {
    NamedTensors all(tensors_.size());
    for_each_storage(every_tensor(), [&](const at::Tensor& storage, std::size_t tensor) {
      all[tensor] = {tensors_[tensor].name, view(storage, tensor)};
    });
    return all;
  }

  void read(std::vector<Read> reads) const override {
    at::NoGradGuard no_grad;
    std::vector<std::size_t> wanted;
    std::vector<at::Tensor> into(tensors_.size());
    for (const Read& one : reads) {
      wanted.push_back(one.tensor);
      into[one.tensor] = one.into;
    }
    for_each_storage(wanted, [&](const at::Tensor& storage, std::size_t tensor) {
      at::Tensor target = into[tensor].detach();
      target.copy_(view(storage, tensor));
    });
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(text("not weights that can be trusted: ", what), {.file = zip_.path()});
  }

  void refuse_others() const {
    if (zip_.has(folder_ + "constants.pkl"))
      throw FormatError(
          "is a TorchScript program, not a file of weights",
          {.file = zip_.path(),
           .hint = "In Python: torch.save(torch.jit.load(file).state_dict(), other_file)."});
    const std::string order = folder_ + "byteorder";  // missing in files of torch before 2.1
    if (zip_.has(order) && (zip_.size(order) > 16 || zip_.read(order) != "little"))
      throw FormatError("was written on a machine that has the high byte of a number first",
                        {.file = zip_.path(), .hint = "Save it again on a little-endian machine."});
  }

  // One element may stand for many (stride 0), and a few bytes for a tensor of any size.
  void check_size(const std::string& name, const PickledTensor& tensor,
                  const std::string& dtype) const {
    std::uint64_t bytes = static_cast<std::uint64_t>(dtype_bytes(dtype));
    for (const std::int64_t size : tensor.shape) bytes *= static_cast<std::uint64_t>(size);
    if (bytes > zip_.file_size())
      fail(text("tensor '", shown(name), "' of shape [", join(tensor.shape, ", "), "] has ", bytes,
                " bytes, the whole file has ", zip_.file_size()));
  }

  // Entries of an archive may overlap, so together too they must not be more than the file.
  void check_storages() const {
    std::uint64_t all = 0;
    for (const std::size_t number : storages_of(every_tensor())) {
      const PickledStorage& storage = storages_[number];
      const std::uint64_t has = zip_.size(entry(number));
      std::uint64_t bytes = 0;
      if (__builtin_mul_overflow(storage.elements,
                                 static_cast<std::uint64_t>(dtype_bytes(storage.dtype)), &bytes) ||
          bytes > has)
        fail(text("storage '", shown(storage.key), "' is said to have ", storage.elements,
                  " elements, its entry has ", has, " bytes"));
      all += bytes;
      if (all > zip_.file_size()) fail("its entries overlap");
    }
  }

  std::string entry(std::size_t storage) const {
    return folder_ + "data/" + storages_[storage].key;
  }

  std::vector<std::size_t> every_tensor() const {
    std::vector<std::size_t> all(tensors_.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    return all;
  }

  std::vector<std::size_t> storages_of(const std::vector<std::size_t>& tensors) const {
    std::vector<std::size_t> used;
    for (const std::size_t tensor : tensors) used.push_back(views_[tensor].storage);
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    return used;
  }

  at::Tensor view(const at::Tensor& storage, std::size_t tensor) const {
    const PickledTensor& view = views_[tensor];
    const at::Tensor values = at::as_strided(storage, view.shape, view.strides, view.offset);
    return view.negated ? values.neg() : values;
  }

  // Reads each storage once, and calls use(storage, tensor) for the tensors that are views of it.
  template <class Use>
  void for_each_storage(std::vector<std::size_t> tensors, Use use) const {
    std::stable_sort(tensors.begin(), tensors.end(), [&](std::size_t a, std::size_t b) {
      return views_[a].storage < views_[b].storage;
    });
    at::Tensor storage;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::size_t number = views_[tensors[i]].storage;
      if (i == 0 || number != views_[tensors[i - 1]].storage) {
        storage = at::empty({static_cast<std::int64_t>(storages_[number].elements)},
                            at::dtype(tensors_[tensors[i]].type));
        zip_.read(entry(number), storage.mutable_data_ptr(), storage.nbytes());
      }
      use(storage, tensors[i]);
    }
  }

  ZipFile zip_;
  std::string folder_;
  std::vector<PickledStorage> storages_;
  std::vector<PickledTensor> views_;  // one for each of tensors_
};

}  // namespace

std::unique_ptr<WeightsFile> open_torch_archive(const std::filesystem::path& path) {
  return std::make_unique<TorchArchive>(path);
}

}  // namespace trestle::checkpoint
