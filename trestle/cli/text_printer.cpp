#include "trestle/cli/text_printer.h"

#include <iostream>
#include <utility>

namespace trestle::cli {

// An infinite gap is null.
void add_gap(nlohmann::ordered_json& line, const generate::Generated& made) {
  line["smallest_gap"] = made.smallest_gap;
  line["smallest_gap_at"] = nullptr;
  if (made.smallest_gap_at >= 0) line["smallest_gap_at"] = made.smallest_gap_at;
}

void TextPrinter::start(std::vector<Part> parts) {
  parts_ = std::move(parts);
  current_ = 0;
  print();
}

void TextPrinter::add(std::size_t part, std::string_view words) {
  parts_[part].held += words;
  if (part == current_) print();
}

void TextPrinter::end(std::size_t part, const generate::Written& written) {
  parts_[part].written = written;
  while (current_ < parts_.size() && parts_[current_].written) {
    print();
    print_end(parts_[current_]);
    ++current_;
  }
  if (current_ < parts_.size()) print();
}

void TextPrinter::break_line() {
  if (inside_line_) std::cout << std::endl;
  inside_line_ = false;
}

void TextPrinter::print() {
  Part& part = parts_[current_];
  if (form_ != Form::Json) {
    std::cout << part.begin << part.held << std::flush;
    const std::string& last = part.held.empty() ? part.begin : part.held;
    if (!last.empty()) inside_line_ = last.back() != '\n';
  }
  part.begin.clear();
  part.held.clear();
}

void TextPrinter::print_end(const Part& part) {
  const generate::Generated& made = part.written->generated;
  if (form_ == Form::Json) {
    nlohmann::ordered_json line{{"prompt", part.prompt},
                                {"prompt_ids", part.ids},
                                {"text", part.written->text},
                                {"ids", made.ids},
                                {"ended", generate::to_word(made.ended)},
                                {"prompt_seconds", made.prompt_seconds},
                                {"answer_seconds", made.answer_seconds}};
    add_gap(line, made);
    std::cout << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
    return;
  }
  std::cout << std::endl;
  inside_line_ = false;
  if (made.ended == generate::Ended::Context)
    std::cerr << "trestle: the text ends because the model's context of " << context_
              << " tokens is full (--slide continues it)\n";
}

}  // namespace trestle::cli
