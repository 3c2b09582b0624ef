#include <algorithm>
#include <cmath>

#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/view/split_picture.h"
#include "trestle/view/split_table.h"

namespace trestle::view {
namespace {

constexpr int bar_columns = 48;

// "0000111122223333": the rank that holds each place of a part. Above 10 ranks one digit does not
// name a rank, so letters follow.
std::string bar_of(const SplitPicture::Tensor& tensor, std::size_t part) {
  constexpr std::string_view digits =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+/";
  static_assert(digits.size() == most_split_ranks);
  const auto begin = static_cast<double>(part_begins(tensor)[part]);
  const auto size = static_cast<double>(tensor.parts[part].size);
  std::string bar(bar_columns, '.');
  for (std::size_t rank = 0; rank < tensor.held.size(); ++rank) {
    const auto& range = tensor.held[rank][part];
    const double from = (static_cast<double>(range.begin) - begin) / size * bar_columns;
    const double to = from + static_cast<double>(range.size) / size * bar_columns;
    for (auto at = std::lround(from); at < std::lround(to); ++at)
      bar[static_cast<std::size_t>(at)] = digits[rank];
  }
  return bar;
}

std::string padded_cell(const std::string& words, int width) {
  return words + std::string(static_cast<std::size_t>(std::max(0, width - columns_of(words))), ' ');
}

void add_table(const SplitTable& table, const std::string& indent, std::string* out) {
  std::vector<int> widths;
  for (std::size_t i = 0; i < table.head.size(); ++i) {
    int widest = columns_of(table.head[i]);
    for (const auto& row : table.rows) widest = std::max(widest, columns_of(row[i]));
    widths.push_back(widest);
  }
  const auto add = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += (i > 0 ? "  " : "") + padded_cell(row[i], widths[i]);
    *out += indent + line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  add(table.head);
  for (const int rank : shown_ranks(static_cast<int>(table.rows.size())))
    rank < 0 ? add({"…"}) : add(table.rows[static_cast<std::size_t>(rank)]);
}

class SplitText {
 public:
  SplitText(const SplitPicture& picture, int columns) : picture_(picture), columns_(columns) {}

  std::string write() {
    line(picture_.title, 2);
    if (!picture_.subtitle.empty()) line(picture_.subtitle, 2);
    for (const auto& section : picture_.sections) {
      out_ += "\n";
      line("── " + heading_of(section), 3);
      for (const auto& one : section.steps) step(one);
    }
    out_ += "\nbytes of the parameters on each rank\n";
    add_table(bytes_of(picture_), "", &out_);
    return std::move(out_);
  }

 private:
  void line(const std::string& words, int indent) {
    out_ += (columns_ > 0 ? folded(words, columns_, indent) : words) + "\n";
  }

  void exchange(const SplitPicture::Exchange& exchange) {
    const auto add = [&](const std::string& way, const SplitPicture::Message& message) {
      const std::string words = way + words_of(message);
      out_ += (columns_ > 0 ? wrapped(words, columns_, 14) : words) + "\n";
    };
    for (const auto& message : exchange.forward) add("  v forward   ", message);
    for (const auto& message : exchange.backward) add("  ^ backward  ", message);
  }

  void step(const SplitPicture::Step& step) {
    exchange(step.before);
    line(text(step.name, step.note.empty() ? "" : " · " + step.note, " · ", shapes_of(step)), 2);
    const SplitTable table = ranges_of(picture_, step);
    if (table.rows.empty()) {
      line("  " + whole_words(picture_, step), 4);
    } else {
      bars(step);
      add_table(table, "  ", &out_);
      sharing(step);
    }
    exchange(step.after);
  }

  void bars(const SplitPicture::Step& step) {
    for (const auto& tensor : step.tensors) {
      if (tensor.held.empty() || tensor.shape.size() == 1) continue;
      std::size_t widest = 0;
      std::vector<std::string> names;
      for (const auto& part : tensor.parts) {
        const std::string& indices = tensor.dimension == 0 ? tensor.row_name : tensor.column_name;
        names.push_back(part.name.empty() ? indices : part.name);
        widest = std::max(widest, names.back().size());
      }
      for (std::size_t i = 0; i < tensor.parts.size(); ++i)
        out_ += "  " + padded_cell(names[i], static_cast<int>(widest)) + "  " + bar_of(tensor, i) +
                "\n";
    }
  }

  void sharing(const SplitPicture::Step& step) {
    for (const auto& tensor : step.tensors) {
      std::vector<std::string> names;
      for (const auto& part : tensor.parts)
        if (!part.gathered_head.empty()) names.push_back(part.name);
      if (names.empty() || tensor.shape.size() == 1) continue;
      const auto& part = *std::ranges::find(tensor.parts, names[0], &SplitPicture::Part::name);
      line(text("  ", join(names, " and "), " are gathered · ", join(sharing_of(part), " · ")), 4);
    }
  }

  const SplitPicture& picture_;
  int columns_;
  std::string out_;
};

}  // namespace

std::string to_text_split(const SplitPicture& picture, int columns) {
  check_split(picture);
  return SplitText(picture, columns).write();
}

}  // namespace trestle::view
