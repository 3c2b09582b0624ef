#include "trestle/checkpoint/share_pages.h"

#include <c10/core/Storage.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "trestle/checkpoint/files/safetensors_header.h"

namespace trestle::checkpoint {

namespace {

using Read = WeightsFile::Read;
using Mapped = WeightsFile::Mapped;

std::uint64_t begin_in_storage(const at::Tensor& tensor) {
  return static_cast<std::uint64_t>(tensor.storage_offset()) * tensor.element_size();
}

// The range of a mapped file that has all bytes of the storage of `reads`, or nothing.
std::optional<Mapped> range_of_storage(const WeightsFile& file, std::vector<const Read*> reads) {
  std::sort(reads.begin(), reads.end(), [](const Read* a, const Read* b) {
    return begin_in_storage(a->into) < begin_in_storage(b->into);
  });
  std::optional<Mapped> range;
  std::uint64_t filled = 0;
  for (const Read* read : reads) {
    if (!read->offset.empty() || !has_stored_layout(read->into, file.tensors()[read->tensor]) ||
        begin_in_storage(read->into) != filled)
      return std::nullopt;
    const Mapped bytes = file.mapped(read->tensor);
    if (!range) range = bytes;
    if (!bytes.file || bytes.file != range->file || bytes.begin != range->begin + filled)
      return std::nullopt;
    filled += read->into.nbytes();
  }
  const bool whole = filled > 0 && filled == reads.front()->into.storage().nbytes();
  if (!whole || range->begin % data_alignment != 0) return std::nullopt;
  return range;
}

// The storage frees its own memory, and keeps the mapping alive.
void share(const c10::Storage& storage, const Mapped& range) {
  range.file->read_ahead(range.begin, storage.nbytes());
  auto* const owner = new std::shared_ptr<MappedFile>(range.file);
  storage.set_data_ptr_noswap(at::DataPtr(
      range.file->data() + range.begin, owner,
      [](void* context) { delete static_cast<std::shared_ptr<MappedFile>*>(context); },
      at::Device(at::kCPU)));
}

}  // namespace

std::vector<Read> share_pages(const WeightsFile& file, const std::vector<Read>& reads) {
  std::map<const c10::StorageImpl*, std::vector<const Read*>> by_storage;
  for (const Read& read : reads)
    by_storage[read.into.storage().unsafeGetStorageImpl()].push_back(&read);
  std::set<const c10::StorageImpl*> shared;
  for (const auto& [storage, of_storage] : by_storage) {
    const auto range = range_of_storage(file, of_storage);
    if (!range) continue;
    share(of_storage.front()->into.storage(), *range);
    shared.insert(storage);
  }
  std::vector<Read> rest;
  for (const Read& read : reads)
    if (shared.contains(read.into.storage().unsafeGetStorageImpl()))
      read.into.unsafeGetTensorImpl()->bump_version();  // as an operator in place does
    else
      rest.push_back(read);
  return rest;
}

}  // namespace trestle::checkpoint
