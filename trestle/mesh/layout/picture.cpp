#include <algorithm>

#include "trestle/base/text.h"
#include "trestle/mesh/layout/mesh_layout.h"

namespace trestle::mesh {

namespace {

std::string padded(const std::string& word, std::size_t width) {
  return std::string(width - std::min(width, word.size()), ' ') + word;
}

std::string without_trailing_blanks(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

// A block of the picture: the ranks of all rows, under the name and the numbers of the columns.
class Block {
 public:
  Block(const Dimension* rows, const Dimension& columns, int largest)
      : rows_(rows),
        columns_(columns),
        cell_(std::max(text(largest).size(), text(columns.size - 1).size())) {
    const std::size_t number = rows == nullptr ? 0 : text(rows->size - 1).size();
    label_ = rows == nullptr ? 0 : rows->name.size() + 1 + number;
  }

  std::string lines(const int* ranks) const {
    const std::string gap(label_ == 0 ? 0 : label_ + 3, ' ');
    std::string out = without_trailing_blanks(gap + columns_.name);
    out += without_trailing_blanks(gap + row([](int column) { return column; }));
    const int count = rows_ == nullptr ? 1 : rows_->size;
    for (int place = 0; place < count; ++place, ranks += columns_.size) {
      std::string head;
      if (rows_ != nullptr) {
        const std::string name = place == 0 ? rows_->name : "";
        head = name + padded(text(place), label_ - name.size()) + "   ";
      }
      out += without_trailing_blanks(head + row([&](int column) { return ranks[column]; }));
    }
    return out;
  }

 private:
  template <class Number>
  std::string row(const Number& number) const {
    std::vector<std::string> cells;
    for (int column = 0; column < columns_.size; ++column)
      cells.push_back(padded(text(number(column)), cell_));
    return join(cells, " ");
  }

  const Dimension* rows_;  // nullptr: there is one row
  const Dimension& columns_;
  std::size_t cell_;
  std::size_t label_;
};

}  // namespace

std::string MeshLayout::picture() const {
  const std::size_t count = dimensions_.size();
  const Dimension* const rows = count > 1 ? &dimensions_[count - 2] : nullptr;
  const Block block(rows, dimensions_.back(), *std::max_element(ranks_.begin(), ranks_.end()));
  const std::size_t cells = static_cast<std::size_t>(dimensions_.back().size) *
                            static_cast<std::size_t>(rows == nullptr ? 1 : rows->size);
  std::string out;
  for (std::size_t at = 0; at < ranks_.size(); at += cells) {
    if (count > 2) {
      const std::vector<int> place = coordinates(ranks_[at]);
      std::vector<std::string> parts;
      for (std::size_t i = 0; i + 2 < count; ++i)
        parts.push_back(text(dimensions_[i].name, " ", place[i]));
      out += (at == 0 ? "" : "\n") + join(parts, ", ") + "\n";
    }
    out += block.lines(ranks_.data() + at);
  }
  return out;
}

}  // namespace trestle::mesh
