#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/box_read.h"
#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/checkpoint/dtypes.h"
#include "trestle/checkpoint/files/content_hash.h"
#include "trestle/checkpoint/files/pickle/pickle.h"
#include "trestle/checkpoint/open_checkpoint.h"

namespace trestle::checkpoint {

namespace {

namespace fs = std::filesystem;

// Size of the buffer for boxes that cannot be read directly into their destination.
constexpr std::int64_t most_buffered = 64 << 20;

// Whether the elements are contiguous in the file.
bool is_contiguous(const BoxRead& request) {
  const Box& stored = request.stored_box();
  for (std::size_t d = 1; d < stored.sizes.size(); ++d)
    if (request.box.sizes[d] != stored.sizes[d]) return false;
  return true;
}

std::int64_t row_elements(const Box& stored) {
  return stored.sizes.empty() ? 1 : elements_of({stored.sizes.begin() + 1, stored.sizes.end()});
}

std::int64_t first_row(const BoxRead& request) {
  return request.box.offset.empty() ? 0 : request.box.offset[0] - request.stored_box().offset[0];
}

bool readable_in_place(const at::Tensor& into) {
  return into.is_cpu() && into.is_contiguous() && !into.is_neg();
}

// Reads boxes from one file.
class ShardReader {
 public:
  ShardReader(std::string path, std::unique_ptr<BoxSource> source)
      : path_(std::move(path)), source_(std::move(source)) {}

  void read(const std::vector<BoxRead>& requests) const {
    std::vector<BoxSource::Elements> in_place;
    std::vector<const BoxRead*> hashed, buffered;
    for (const BoxRead& request : requests) {
      source_->check(request);
      if (!is_contiguous(request) || !readable_in_place(request.into)) {
        buffered.push_back(&request);
        continue;
      }
      in_place.push_back(
          {&request, first_row(request) * row_elements(request.stored_box()), request.into});
      if (request.is_whole()) hashed.push_back(&request);
    }
    source_->read(in_place);
    check_hashes(hashed);
    for (const BoxRead* request : buffered) read_through_buffer(*request);
  }

 private:
  void check_hash(const BoxRead& request, const std::string& hash) const {
    const std::string& expected = request.tensor->boxes[request.stored].hash;
    if (!expected.empty() && hash != expected)
      throw FormatError(text("'", shown(request.tensor->name), "' differs from the saved one"),
                        {.file = path_, .hint = hint_});
  }

  void check_hashes(const std::vector<const BoxRead*>& requests) const {
    std::vector<std::string> hashes(requests.size());
    at::parallel_for(0, static_cast<std::int64_t>(requests.size()), 1,
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t i = begin; i < end; ++i) {
                         const at::Tensor& read = requests[static_cast<std::size_t>(i)]->into;
                         hashes[static_cast<std::size_t>(i)] =
                             content_hash({static_cast<const char*>(read.const_data_ptr()),
                                           static_cast<std::size_t>(read.nbytes())});
                       }
                     });
    for (std::size_t i = 0; i < requests.size(); ++i) check_hash(*requests[i], hashes[i]);
  }

  // Reads whole rows of the stored box, some at a time, and copies the wanted columns.
  void read_through_buffer(const BoxRead& request) const {
    const Box& stored = request.stored_box();
    const std::int64_t row = row_elements(stored);
    const std::int64_t rows = request.box.sizes.empty() ? 1 : request.box.sizes[0];
    const at::ScalarType type = scalar_type(request.tensor->dtype);
    const auto row_bytes =
        std::max<std::int64_t>(row * static_cast<std::int64_t>(c10::elementSize(type)), 1);
    // A box that is read as a whole is also compared as a whole.
    const std::int64_t at_once =
        request.is_whole() ? rows : std::clamp<std::int64_t>(most_buffered / row_bytes, 1, rows);
    for (std::int64_t done = 0; done < rows; done += at_once) {
      const std::int64_t count = std::min(at_once, rows - done);
      Box slab = stored;
      if (!slab.sizes.empty()) {
        slab.offset[0] = request.box.offset[0] + done;
        slab.sizes[0] = count;
      }
      const at::Tensor between = at::empty(slab.sizes, at::dtype(type));
      source_->read({{&request, (first_row(request) + done) * row, between}});
      if (request.is_whole())
        check_hash(request, content_hash({static_cast<const char*>(between.const_data_ptr()),
                                          static_cast<std::size_t>(between.nbytes())}));
      const Box wanted = *intersection(slab, request.box);
      at::Tensor target = box_view(request.into, request.box.offset, wanted);
      target.copy_(box_view(between, slab.offset, wanted));
    }
  }

  std::string path_;
  std::unique_ptr<BoxSource> source_;
  const std::string hint_ =
      "It was damaged, or it belongs to another save: all files of a checkpoint belong together.";
};

}  // namespace

struct CheckpointFolder::Content {
  fs::path path;
  CheckpointIndex index;
  std::map<std::string, std::vector<StoredTensor>> tensors;
  std::map<std::string, std::unordered_map<std::string, const IndexedTensor*>> by_name;
  PaddedRows padding;
  nn::ParameterSlices slices;
  std::unordered_map<const IndexedTensor*, const nn::ParameterSlice*> sliced;
  mutable VerifiedRecords verified;

  // The files then have fewer rows than the tensors.
  void add_padding() {
    for (auto& [group, all] : index.groups)
      for (IndexedTensor& tensor : all) {
        const RowCounts* const rows = find_rows(padding, tensor.name);
        if (rows && !tensor.shape.empty() && tensor.shape[0] == rows->saved)
          tensor.shape[0] = rows->in_model;
      }
  }

  // The tensors then have the shapes of this rank's slices. After add_padding().
  void add_slices() {
    for (auto& [group, all] : index.groups)
      for (IndexedTensor& tensor : all) {
        const nn::ParameterSlice* const slice = find_slice(slices, tensor.name);
        if (slice == nullptr || tensor.shape != slice->whole) continue;
        tensor.shape = slice->shape();
        sliced.emplace(&tensor, slice);
      }
  }

  // The boxes of the saved tensor that a box of this rank's tensor consists of.
  std::vector<SlicedBox> saved_boxes(const IndexedTensor& tensor, const Box& own) const {
    const auto found = sliced.find(&tensor);
    if (found == sliced.end()) return {{own, own}};
    return in_whole_tensor(own, *found->second);
  }

  // A tensor to be filled with what the files have.
  at::Tensor unfilled(at::IntArrayRef sizes, const IndexedTensor& tensor) const {
    const auto options = at::dtype(scalar_type(tensor.dtype));
    return find_rows(padding, tensor.name) ? at::zeros(sizes, options) : at::empty(sizes, options);
  }

  const IndexedTensor* find(const std::string& group, const std::string& name) const {
    const auto names = by_name.find(group);
    if (names == by_name.end()) return nullptr;
    const auto found = names->second.find(name);
    return found == names->second.end() ? nullptr : found->second;
  }

  // The problem of this request; "" if there is none.
  std::string problem(const std::string& group, const Wanted& wanted) const {
    const std::string name = text("'", shown(wanted.name), "'");
    const IndexedTensor* tensor = find(group, wanted.name);
    if (tensor == nullptr) return name + " is missing";
    const std::string saved = text(name, " is ", c10::toString(scalar_type(tensor->dtype)), " [",
                                   join(tensor->shape, ", "), "]");
    const at::ScalarType type = scalar_type(tensor->dtype), model = wanted.into.scalar_type();
    const bool converts =
        index.kind != FolderKind::Trestle && at::isFloatingType(type) && at::isFloatingType(model);
    if (type != model && !converts)
      return text(saved, ", but the model's is ", c10::toString(wanted.into.scalar_type()), " ",
                  wanted.into.sizes());
    if (wanted.offset.empty() && wanted.into.sizes() != at::IntArrayRef(tensor->shape))
      return text(saved, ", but the model's is ", c10::toString(wanted.into.scalar_type()), " ",
                  wanted.into.sizes());
    if (!wanted.offset.empty() &&
        !lies_in({wanted.offset, wanted.into.sizes().vec()}, tensor->shape))
      return text(saved, ", but the requested box begins at [", join(wanted.offset, ", "),
                  "] and has size ", wanted.into.sizes());
    return "";
  }
};

CheckpointFolder::CheckpointFolder(const fs::path& folder, const PaddedRows& padding,
                                   const nn::ParameterSlices& slices) {
  auto content = std::make_shared<Content>();
  content->path = files_folder(whole_folder(folder));
  content->index = read_index(content->path);
  content->padding = padding;
  content->slices = slices;
  content->add_padding();
  content->add_slices();
  for (const auto& [group, tensors] : content->index.groups)
    for (const IndexedTensor& tensor : tensors) {
      content->tensors[group].push_back({tensor.name, scalar_type(tensor.dtype), tensor.shape});
      content->by_name[group][tensor.name] = &tensor;
    }
  content_ = std::move(content);
}

const fs::path& CheckpointFolder::path() const { return content_->path; }
const std::string& CheckpointFolder::state() const { return content_->index.state; }
bool CheckpointFolder::is_foreign() const { return content_->index.kind != FolderKind::Trestle; }

const std::vector<StoredTensor>& CheckpointFolder::tensors(const std::string& group) const {
  static const std::vector<StoredTensor> none;
  const auto found = content_->tensors.find(group);
  return found == content_->tensors.end() ? none : found->second;
}

void StagedTensors::write() const {
  const at::NoGradGuard no_grad;
  for (const auto& [from, into] : copies_) {
    at::Tensor target = into.detach();
    target.copy_(from);
  }
}

void CheckpointFolder::read(const std::string& group, const std::vector<Wanted>& wanted) const {
  stage(group, wanted).write();
}

StagedTensors CheckpointFolder::stage(const std::string& group,
                                      const std::vector<Wanted>& wanted) const {
  std::vector<std::string> problems;
  for (const Wanted& one : wanted)
    if (std::string problem = content_->problem(group, one); !problem.empty())
      problems.push_back(std::move(problem));
  if (!problems.empty()) {
    const std::size_t count = problems.size();
    if (count > 5) problems.resize(5);
    throw FormatError(text("its ", group, " do not match the model, ", count,
                           count == 1 ? " difference: " : " differences: ", join(problems, "; "),
                           count > 5 ? "; ..." : ""),
                      {.file = content_->path.string()});
  }
  StagedTensors staged;
  std::vector<Wanted> fresh;
  for (const Wanted& one : wanted) {
    const IndexedTensor& tensor = *content_->find(group, one.name);
    fresh.push_back({one.name, content_->unfilled(one.into.sizes(), tensor), one.offset});
    staged.copies_.emplace_back(fresh.back().into, one.into);
  }
  fill(group, fresh);
  return staged;
}

void CheckpointFolder::fill(const std::string& group, const std::vector<Wanted>& wanted) const {
  std::map<std::string, std::vector<BoxRead>> by_file;
  for (const Wanted& one : wanted) {
    const IndexedTensor& tensor = *content_->find(group, one.name);
    const Box own{one.offset.empty() ? Sizes(tensor.shape.size(), 0) : one.offset,
                  one.into.sizes().vec()};
    if (one.into.numel() == 0) continue;
    for (const SlicedBox& part : content_->saved_boxes(tensor, own)) {
      const at::Tensor into = box_view(one.into, own.offset, part.own);
      for (const auto& [stored, box] : overlaps_of(part.whole, tensor.plain_boxes()))
        by_file[tensor.boxes[stored].file].push_back(
            {&tensor, stored, box, box_view(into, part.whole.offset, box)});
    }
  }
  for (const auto& [file, requests] : by_file)
    ShardReader((content_->path / file).string(),
                open_box_source(content_->path, file, content_->index, content_->verified))
        .read(requests);
}

NamedTensors CheckpointFolder::read(const std::string& group,
                                    const std::vector<std::string>& names) const {
  NamedTensors all;
  std::vector<Wanted> wanted;
  for (const std::string& name : names) {
    const IndexedTensor* tensor = content_->find(group, name);
    if (tensor == nullptr)
      throw FormatError(text("its ", group, " have no '", shown(name), "'"),
                        {.file = content_->path.string()});
    all.emplace_back(name, content_->unfilled(tensor->shape, *tensor));
    wanted.push_back({name, all.back().second});
  }
  fill(group, wanted);
  return all;
}

NamedTensors CheckpointFolder::read(const std::string& group) const {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : tensors(group)) names.push_back(tensor.name);
  return read(group, names);
}

}  // namespace trestle::checkpoint
