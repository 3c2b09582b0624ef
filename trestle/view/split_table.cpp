#include "trestle/view/split_table.h"

#include <algorithm>
#include <map>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/view/labels.h"

namespace trestle::view {
namespace {

using SplitRange = SplitPicture::Range;
using SplitPart = SplitPicture::Part;
using SplitTensor = SplitPicture::Tensor;
using SplitStep = SplitPicture::Step;

constexpr int most_rows = 12;  // of a table

void check_tensor(const SplitPicture& picture, const std::string& step, const SplitTensor& tensor) {
  const std::string name = text("'", step, ".", tensor.name, "'");
  const auto ranks = static_cast<std::size_t>(picture.ranks);
  if (tensor.shape.empty() ||
      std::ranges::any_of(tensor.shape, [](std::int64_t size) { return size < 1; }))
    throw UsageError(text(name, " of shape [", join(tensor.shape, ", "), "] cannot be drawn"));
  if (tensor.dimension >= tensor.shape.size())
    throw UsageError(text(name, " has no dimension ", tensor.dimension));
  if (tensor.held.empty() && tensor.parts.empty()) return;
  std::int64_t sum = 0;
  for (const SplitPart& part : tensor.parts) {
    sum += part.size;
    if (part.size < 1 || (part.heads > 0 && part.size % part.heads != 0))
      throw UsageError(text(name, ": a part of ", part.size, " with ", part.heads, " heads"));
    if (!part.gathered_head.empty() && part.gathered_head.size() != ranks)
      throw UsageError(text(name, " names gathered heads of ", part.gathered_head.size(), " of ",
                            ranks, " ranks"));
  }
  if (sum != tensor.shape[tensor.dimension])
    throw UsageError(text(name, ": its parts have ", sum, " of ", tensor.shape[tensor.dimension],
                          " ", tensor.dimension == 0 ? tensor.row_name : tensor.column_name));
  if (tensor.held.empty()) return;
  if (tensor.held.size() != ranks)
    throw UsageError(text(name, " has slices of ", tensor.held.size(), " of ", ranks, " ranks"));
  const std::vector<std::int64_t> begins = part_begins(tensor);
  for (const auto& ranges : tensor.held) {
    if (ranges.size() != tensor.parts.size())
      throw UsageError(
          text(name, ": ", ranges.size(), " ranges of ", tensor.parts.size(), " parts"));
    for (std::size_t i = 0; i < ranges.size(); ++i)
      if (ranges[i].size < 0 || ranges[i].begin < begins[i] ||
          ranges[i].begin + ranges[i].size > begins[i] + tensor.parts[i].size)
        throw UsageError(text(name, ": the range ", ranges[i].begin, " to ",
                              ranges[i].begin + ranges[i].size, " is outside of its part"));
  }
}

// "0..191"; "-" for no index.
std::string range_words(const SplitRange& range) {
  return range.size == 0 ? "-" : text(range.begin, "..", range.begin + range.size - 1);
}

// The heads of a range, counted in its part: "4..5", or "4" for one.
std::string heads_of(const SplitPart& part, std::int64_t part_begin, const SplitRange& range) {
  const std::int64_t size = part.size / part.heads, begin = range.begin - part_begin;
  const std::int64_t first = begin / size, last = (begin + range.size - 1) / size;
  return first == last ? text(first) : text(first, "..", last);
}

// The split tensor that stands for all split tensors of a step: the one of the most dimensions.
const SplitTensor* split_tensor(const SplitStep& step) {
  const SplitTensor* found = nullptr;
  for (const SplitTensor& tensor : step.tensors)
    if (!tensor.held.empty() && (found == nullptr || tensor.shape.size() > found->shape.size()))
      found = &tensor;
  return found;
}

Bytes bytes_on_rank(const SplitStep& step, int rank) {
  Bytes bytes = 0;
  for (const SplitTensor& tensor : step.tensors) bytes += view::bytes_on_rank(tensor, rank);
  return bytes;
}

Bytes whole_bytes(const SplitTensor& tensor) {
  Bytes bytes = tensor.tied_to.empty() ? tensor.element_bytes : 0;
  for (const std::int64_t size : tensor.shape) bytes *= size;
  return bytes;
}

// Whether the ranks read heads that they gather, in the same way for all parts that have them.
const SplitPart* gathered_part(const SplitTensor& tensor) {
  for (const SplitPart& part : tensor.parts)
    if (!part.gathered_head.empty()) return &part;
  return nullptr;
}

// The parts whose ranges are whole heads, one for each number of heads. Their columns are "heads",
// or "q heads" and "k, v heads".
struct HeadColumn {
  std::size_t part = 0;
  std::vector<std::string> names;
};
std::vector<HeadColumn> head_columns(const SplitTensor& tensor) {
  std::vector<HeadColumn> columns;
  for (std::size_t i = 0; i < tensor.parts.size(); ++i) {
    const SplitPart& part = tensor.parts[i];
    if (part.heads == 0 || !part.gathered_head.empty()) continue;
    const auto same = std::ranges::find_if(columns, [&](const HeadColumn& column) {
      return tensor.parts[column.part].heads == part.heads;
    });
    if (same == columns.end())
      columns.push_back({i, {part.name}});
    else
      same->names.push_back(part.name);
  }
  return columns;
}

}  // namespace

std::vector<std::int64_t> part_begins(const SplitTensor& tensor) {
  std::vector<std::int64_t> begins;
  std::int64_t begin = 0;
  for (const SplitPart& part : tensor.parts) {
    begins.push_back(begin);
    begin += part.size;
  }
  return begins;
}

void check_split(const SplitPicture& picture) {
  if (picture.ranks < 1 || picture.ranks > most_split_ranks)
    throw UsageError(text("a split over ", picture.ranks, " ranks cannot be drawn"),
                     {.hint = text("A picture has 1 to ", most_split_ranks, " ranks.")});
  for (const auto& section : picture.sections)
    for (const SplitStep& step : section.steps)
      for (const SplitTensor& tensor : step.tensors) check_tensor(picture, step.name, tensor);
}

Bytes bytes_on_rank(const SplitTensor& tensor, int rank) {
  if (tensor.held.empty()) return whole_bytes(tensor);
  std::int64_t own = 0;
  for (const SplitRange& range : tensor.held[static_cast<std::size_t>(rank)]) own += range.size;
  return whole_bytes(tensor) / tensor.shape[tensor.dimension] * own;
}

SplitTable ranges_of(const SplitPicture& picture, const SplitStep& step) {
  SplitTable table;
  const SplitTensor* const tensor = split_tensor(step);
  if (tensor == nullptr) return table;
  const std::string& indices = tensor->dimension == 0 ? tensor->row_name : tensor->column_name;
  const std::vector<HeadColumn> headed = head_columns(*tensor);
  const std::vector<std::int64_t> begins = part_begins(*tensor);
  table.head = {"rank"};
  for (const HeadColumn& column : headed)
    table.head.push_back(headed.size() == 1 ? "heads" : join(column.names, ", ") + " heads");
  for (const SplitPart& part : tensor->parts)
    table.head.push_back(part.name.empty() ? indices : part.name + " " + indices);
  const SplitPart* const gathered = gathered_part(*tensor);
  if (gathered != nullptr) table.head.emplace_back("reads head");
  table.head.emplace_back("bytes");
  for (int rank = 0; rank < picture.ranks; ++rank) {
    const auto& held = tensor->held[static_cast<std::size_t>(rank)];
    std::vector<std::string> row = {text(rank)};
    for (const auto& [part, names] : headed)
      row.push_back(heads_of(tensor->parts[part], begins[part], held[part]));
    for (const SplitRange& range : held) row.push_back(range_words(range));
    if (gathered != nullptr)
      row.push_back(text(gathered->gathered_head[static_cast<std::size_t>(rank)]));
    row.push_back(tensor->tied_to.empty() ? format_bytes(bytes_on_rank(step, rank)) : "tied");
    table.rows.push_back(std::move(row));
  }
  return table;
}

SplitTable bytes_of(const SplitPicture& picture) {
  SplitTable table;
  table.head = {"rank"};
  for (const auto& section : picture.sections)
    table.head.push_back(section.copies == 1 ? section.name
                                             : text(section.copies, " like ", section.name));
  table.head.insert(table.head.end(), {"all", "of the model"});
  Bytes whole = 0;
  for (const auto& section : picture.sections)
    for (const SplitStep& step : section.steps)
      for (const SplitTensor& tensor : step.tensors) whole += section.copies * whole_bytes(tensor);
  for (int rank = 0; rank < picture.ranks; ++rank) {
    std::vector<std::string> row = {text(rank)};
    Bytes all = 0;
    for (const auto& section : picture.sections) {
      Bytes bytes = 0;
      for (const SplitStep& step : section.steps)
        bytes += section.copies * bytes_on_rank(step, rank);
      row.push_back(format_bytes(bytes));
      all += bytes;
    }
    row.push_back(format_bytes(all));
    row.push_back(whole > 0 ? percent(static_cast<double>(all) / static_cast<double>(whole)) : "-");
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string shapes_of(const SplitStep& step) {
  std::vector<std::string> words;
  for (const SplitTensor& tensor : step.tensors) {
    std::vector<std::string> sizes;
    for (const std::int64_t size : tensor.shape) sizes.push_back(format_count(size));
    words.push_back(text(tensor.name, " ", join(sizes, " × ")));
  }
  return join(words, ", ");
}

std::string whole_words(const SplitPicture& picture, const SplitStep& step) {
  const Bytes bytes = bytes_on_rank(step, 0);
  return text("whole on ", picture.ranks == 1 ? "the only rank" : "every rank", " · ",
              bytes > 0 ? format_bytes(bytes) : "tied");
}

std::string heading_of(const SplitPicture::Section& section) {
  return section.copies == 1 ? section.name
                             : text(section.name, ", one of ", section.copies, " alike");
}

std::vector<int> shown_ranks(int ranks) {
  std::vector<int> shown;
  for (int rank = 0; rank < ranks; ++rank) {
    const bool left_out = ranks > most_rows && rank >= most_rows - 3 && rank < ranks - 2;
    if (!left_out)
      shown.push_back(rank);
    else if (shown.back() >= 0)
      shown.push_back(-1);
  }
  return shown;
}

std::vector<std::string> sharing_of(const SplitPart& part) {
  std::map<std::int64_t, std::vector<std::size_t>> ranks;  // by head
  for (std::size_t rank = 0; rank < part.gathered_head.size(); ++rank)
    ranks[part.gathered_head[rank]].push_back(rank);
  std::vector<std::string> words;
  for (const auto& [head, readers] : ranks)
    words.push_back(readers.size() > 4
                        ? text("head ", head, ": ranks ", readers.front(), " to ", readers.back())
                        : text("head ", head, ": ",
                               plural(static_cast<std::int64_t>(readers.size()), "rank"), " ",
                               join(readers, ", ")));
  return words;
}

const char* to_string(SplitPicture::Message::Kind kind) {
  using Kind = SplitPicture::Message::Kind;
  switch (kind) {
    case Kind::AllReduce:
      return "all-reduce";
    case Kind::AllGather:
      return "all-gather";
    case Kind::ReduceScatter:
      return "reduce-scatter";
  }
  return "";
}

std::string words_of(const SplitPicture::Message& message) {
  return message.words.empty() ? to_string(message.kind)
                               : text(to_string(message.kind), " of ", message.words);
}

}  // namespace trestle::view
