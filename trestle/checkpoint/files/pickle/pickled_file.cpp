#include "trestle/checkpoint/files/pickle/pickled_file.h"

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/safetensors_header.h"

namespace trestle::checkpoint {

PickledFile::PickledFile(const std::filesystem::path& path)
    : zip_(path), folder_(zip_.folder_of("data.pkl")) {
  throw_if_unsupported();
  const std::uint64_t length = zip_.size(folder_ + "data.pkl");
  if (length > longest_pickle)
    fail(text("its pickle has ", length, " bytes, more than the limit of ", longest_pickle));
  bytes_ = zip_.read(folder_ + "data.pkl");
  pickle_ = parse_pickle(bytes_, zip_.path());
}

void PickledFile::fail(const std::string& what) const {
  throw FormatError(text("cannot trust the tensors in this file: ", what), {.file = zip_.path()});
}

void PickledFile::throw_if_unsupported() const {
  if (zip_.has(folder_ + "constants.pkl"))
    throw FormatError(
        "is a TorchScript program, not a file of tensors",
        {.file = zip_.path(),
         .hint = "In Python: torch.save(torch.jit.load(file).state_dict(), other_file)."});
  const std::string order = folder_ + "byteorder";  // missing in files of torch before 2.1
  if (zip_.has(order) && (zip_.size(order) > 16 || zip_.read(order) != "little"))
    throw FormatError("was written on a big-endian machine",
                      {.file = zip_.path(), .hint = "Save it again on a little-endian machine."});
}

void PickledFile::check(const std::vector<Named>& tensors) const {
  std::vector<std::size_t> used;
  for (const Named& named : tensors) {
    check_size(named);
    used.push_back(pickle_.tensors[named.tensor].storage);
  }
  check_storages(std::move(used));
}

// With stride 0 one element stands for many, so a few bytes could describe a tensor of any size.
void PickledFile::check_size(const Named& named) const {
  const PickledTensor& tensor = pickle_.tensors[named.tensor];
  std::uint64_t bytes =
      static_cast<std::uint64_t>(dtype_bytes(pickle_.storages[tensor.storage].dtype));
  for (const std::int64_t size : tensor.shape) bytes *= static_cast<std::uint64_t>(size);
  if (bytes > zip_.file_size())
    fail(text("tensor '", shown(named.name), "' of shape [", join(tensor.shape, ", "), "] has ",
              bytes, " bytes, but the whole file has ", zip_.file_size()));
}

// Entries of an archive may overlap, so their sum must not exceed the file either.
void PickledFile::check_storages(std::vector<std::size_t> used) const {
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  std::uint64_t all = 0;
  for (const std::size_t number : used) {
    const PickledStorage& storage = pickle_.storages[number];
    const std::uint64_t has = zip_.size(entry(number));
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(storage.elements,
                               static_cast<std::uint64_t>(dtype_bytes(storage.dtype)), &bytes) ||
        bytes > has)
      fail(text("storage '", shown(storage.key), "' has ", storage.elements,
                " elements, but its entry has only ", has, " bytes"));
    all += bytes;
    if (all > zip_.file_size()) fail("its entries overlap");
  }
}

std::string PickledFile::entry(std::size_t storage) const {
  return folder_ + "data/" + pickle_.storages[storage].key;
}

void PickledFile::read_storage(std::size_t number, void* into, std::uint64_t bytes) const {
  zip_.read(entry(number), into, bytes);
}

}  // namespace trestle::checkpoint
