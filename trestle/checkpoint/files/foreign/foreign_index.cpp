#include "trestle/checkpoint/files/foreign/foreign_index.h"

#include <bit>
#include <numeric>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/pickle/pickle.h"
#include "trestle/checkpoint/files/range_boxes.h"
#include "trestle/checkpoint/files/safetensors_header.h"

namespace trestle::checkpoint {

ForeignIndex::ForeignIndex(FolderKind kind, std::string folder) : folder_(std::move(folder)) {
  index_.kind = kind;
}

void ForeignIndex::add_box(const std::string& group, const std::string& name, const Sizes& shape,
                           const Box& box, const ElementsOfFile& stored) {
  IndexedTensor& to = tensor(group, name, stored.elements.dtype, shape, stored.file);
  const std::string where = text(folder_, "/", stored.file);
  if (!lies_in(box, shape))
    throw FormatError(
        text("tensor '", shown(name), "' of shape [", join(shape, ", "), "] has a box at [",
             join(box.offset, ", "), "] of size [", join(box.sizes, ", "), "], which exceeds it"),
        {.file = where});
  const auto bytes = static_cast<std::uint64_t>(elements_of(box.sizes)) *
                     static_cast<std::uint64_t>(dtype_bytes(stored.elements.dtype));
  const std::uint64_t all = stored.elements.record.bytes;
  if (stored.elements.begin > all || bytes > all - stored.elements.begin)
    throw FormatError(text("tensor '", shown(name), "' needs ", bytes, " bytes from ",
                           stored.elements.begin, " on, but its storage has ", all),
                      {.file = where});
  const RecordPlace at = place(stored);
  // Tensors may share a storage, as tied weights do. Many of one storage would fill any memory.
  constexpr std::uint64_t most_shared = 16;
  std::uint64_t& used = used_[at.record];
  used += bytes;
  if (used / most_shared > all)
    throw FormatError(text("tensor '", shown(name), "' is the last of more than ", most_shared,
                           " in one storage"),
                      {.file = where});
  to.boxes.push_back({stored.file, box, {}, {}, at});
}

void ForeignIndex::add_range(const std::string& group, const std::string& name, const Sizes& shape,
                             std::int64_t begin, std::int64_t count, const ElementsOfFile& stored) {
  Sizes rows(shape.size());
  std::iota(rows.begin(), rows.end(), 0);
  ElementsOfFile from = stored;
  for (const Box& box : boxes_of_range(shape, rows, begin, count)) {
    add_box(group, name, shape, box, from);
    from.elements.begin += static_cast<std::uint64_t>(elements_of(box.sizes)) *
                           static_cast<std::uint64_t>(dtype_bytes(stored.elements.dtype));
  }
}

void ForeignIndex::add_count(const std::string& group, const std::string& name, double value) {
  if (!(value >= 0 && value < 1e15))
    throw FormatError(text("'", shown(name), "' is ", value, ", which is not a number of steps"),
                      {.file = folder_});
  const auto count = static_cast<std::int64_t>(value);
  std::string bytes(sizeof count, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<char>(static_cast<std::uint64_t>(count) >> (8 * i) & 0xff);
  index_.records.push_back({.file = {}, .bytes = {0, bytes.size(), 0}, .content = bytes});
  tensor(group, name, "I64", {}, {})
      .boxes.push_back({{}, {}, {}, {}, RecordPlace{index_.records.size() - 1, 0}});
}

IndexedTensor& ForeignIndex::tensor(const std::string& group, const std::string& name,
                                    const std::string& dtype, const Sizes& shape,
                                    const std::string& file) {
  auto& all = index_.groups[group];
  const auto [place, is_new] = tensors_.try_emplace({group, name}, all.size());
  if (is_new) all.push_back({name, dtype, shape, {}});
  IndexedTensor& found = all[place->second];
  if (found.dtype != dtype || found.shape != shape)
    throw FormatError(
        text("tensor '", shown(name), "' is ", dtype, " [", join(shape, ", "), "] here, but ",
             found.dtype, " [", join(found.shape, ", "), "] in another file"),
        {.file = text(folder_, "/", file)});
  return found;
}

RecordPlace ForeignIndex::place(const ElementsOfFile& stored) {
  const auto [found, is_new] =
      records_.try_emplace({stored.file, stored.elements.record.begin}, index_.records.size());
  if (is_new) index_.records.push_back({stored.file, stored.elements.record, {}});
  if (index_.records[found->second].bytes != stored.elements.record)
    throw FormatError("cannot trust the tensors in this file: its storages overlap",
                      {.file = text(folder_, "/", stored.file)});
  return {found->second, stored.elements.begin};
}

// Otherwise a small file could hold any number of large storages.
void ForeignIndex::refuse_overlaps() const {
  std::string file;
  std::uint64_t end = 0;
  for (const auto& [place, record] : records_) {  // by file and begin
    if (place.first != file) end = 0;
    file = place.first;
    if (place.second < end)
      throw FormatError("cannot trust the tensors in this file: its storages overlap",
                        {.file = text(folder_, "/", file)});
    end = place.second + index_.records[record].bytes.bytes;
  }
}

CheckpointIndex ForeignIndex::finish(std::string state) {
  for (const auto& [group, tensors] : index_.groups)
    for (const IndexedTensor& tensor : tensors) {
      const auto fault = find_cover_fault(tensor.shape, tensor.plain_boxes());
      if (!fault) continue;
      const std::string name = text("tensor '", shown(tensor.name), "' of the ", group);
      if (fault->kind == CoverFault::Kind::Hole)
        throw FormatError(text("no file contains ", to_string(fault->box), " of ", name),
                          {.file = folder_});
      if (fault->kind == CoverFault::Kind::Ragged)
        throw FormatError(text(name, " has too many irregular boxes"), {.file = folder_});
      throw FormatError(
          text(to_string(fault->box), " of ", name, " is in both '",
               tensor.boxes[fault->first].file, "' and '", tensor.boxes[fault->second].file, "'"),
          {.file = folder_});
    }
  refuse_overlaps();
  index_.state = std::move(state);
  return std::move(index_);
}

}  // namespace trestle::checkpoint
