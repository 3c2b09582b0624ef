#include "trestle/view/split_picture.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/view/palette.h"
#include "trestle/view/split_marks.h"
#include "trestle/view/split_places.h"
#include "trestle/view/split_table.h"
#include "trestle/view/svg_writer.h"

namespace trestle::view {
namespace {

using marks::Direction, marks::words_font, marks::line_height, marks::small_font, marks::swatch;

constexpr double split_margin = 28;
constexpr double lane_width = 92;  // of the activations
constexpr double lane_gap = 34;    // to the matrices
constexpr double words_gap = 30;   // right of the matrices
constexpr double padding = 14;     // right of the words
constexpr double band_gap = 16;    // between steps
constexpr double section_gap = 20;
constexpr double section_head = 30;
constexpr double step_font = 13;
constexpr double node = 12;  // from the top of a step to its mark on the lane
constexpr double drawing_x = split_margin + lane_width + lane_gap;
constexpr double lane_centre = split_margin + lane_width / 2;
constexpr double message_words = 82;  // from drawing_x

double lines_of(const SplitPicture::Exchange& exchange) {
  return static_cast<double>(exchange.forward.size() + exchange.backward.size());
}

double height_of(const SplitPicture::Exchange& exchange) {
  return line_height * lines_of(exchange) + 2;
}

double width_of(const SplitPicture::Exchange& exchange) {
  double widest = 0;
  for (const auto* list : {&exchange.forward, &exchange.backward})
    for (const auto& message : *list)
      widest = std::max(widest, message_words + text_width(words_of(message), words_font));
  return widest;
}

// "queries, keys and values · weight 2,304 × 768, bias 2,304"
std::string facts_of(const SplitPicture::Step& step) {
  return text(step.note, step.note.empty() ? "" : " · ", shapes_of(step));
}

double words_width(const SplitPicture::Step& step) {
  return std::max(text_width(step.name, step_font), text_width(facts_of(step), small_font));
}

// A step and where it is drawn.
struct Band {
  const SplitPicture::Step* step = nullptr;
  StepPlaces places = {};
  SplitTable table = {};
  double top = 0;

  double height(int ranks) const {
    const double rows = table.rows.empty() ? 0 : static_cast<double>(shown_ranks(ranks).size());
    const double words = line_height * (3 + rows) + 2;
    const double drawn =
        places.top + places.height + 14 * static_cast<double>(places.shortened.size());
    return std::max(words, drawn);
  }
};

class SplitDrawing {
 public:
  explicit SplitDrawing(const SplitPicture& picture)
      : picture_(picture), bytes_(bytes_of(picture)) {
    const double scale = split_scale(picture);
    double drawn = 0;
    for (const auto& section : picture.sections)
      for (const auto& step : section.steps) {
        bands_.push_back(
            {.step = &step, .places = places_of(step, scale), .table = ranges_of(picture, step)});
        drawn = std::max(drawn, bands_.back().places.width);
      }
    words_x_ = drawing_x + drawn + words_gap;
    find_right_end();
    legend_.emplace(picture, split_margin, right_);
    lay_out();
  }

  std::string draw() {
    svg_.emplace(SvgWriter::Options{
        .width = right_ + split_margin, .height = bottom_ + split_margin, .title = picture_.title});
    titles();
    legend_->draw(*svg_, legend_top_);
    for (const Frame& one : frames_) frame(one);
    lane();
    for (const Band& band : bands_) step(band);
    for (const Bar& bar : bars_) messages(bar);
    bytes();
    return std::move(*svg_).finish();
  }

 private:
  struct Bar {
    const SplitPicture::Exchange* exchange = nullptr;
    double top = 0;
  };
  struct Frame {
    double top = 0, bottom = 0;
    std::string heading = {};
  };

  void find_right_end() {
    constexpr double least = 720;
    right_ = std::max({least, split_margin + text_width(picture_.title, 18),
                       split_margin + text_width(picture_.subtitle, words_font),
                       split_margin + marks::width_of(bytes_)});
    for (const Band& band : bands_) {
      const double words = std::max(marks::width_of(band.table), words_width(*band.step));
      right_ = std::max(right_, words_x_ + words + padding);
      for (const auto* exchange : {&band.step->before, &band.step->after})
        right_ = std::max(right_, drawing_x + width_of(*exchange) + padding);
    }
  }

  // The activations are so until `bottom`.
  void flow(SplitPicture::Layout layout, double bottom) {
    const double top = flows_.empty() ? flow_top_ : flows_.back().bottom;
    if (!flows_.empty() && flows_.back().layout == layout) {
      flows_.back().bottom = bottom;
      return;
    }
    flows_.push_back({.layout = layout,
                      .ranks = picture_.ranks,
                      .centre = lane_centre,
                      .width = std::min(14.0 * (picture_.ranks - 1), lane_width - 24),
                      .top = top,
                      .bottom = bottom});
  }

  void place(const SplitPicture::Exchange& exchange, SplitPicture::Layout before, double* y) {
    if (exchange.empty()) return;
    flow(before, *y + height_of(exchange) / 2);
    bars_.push_back({&exchange, *y});
    *y += height_of(exchange) + band_gap;
  }

  // The layout above a step's `before`. Messages of the backward leave it as it is.
  SplitPicture::Layout above(const SplitPicture::Step& step) const {
    const bool changes = !step.before.forward.empty() && !flows_.empty();
    return changes ? flows_.back().layout : step.input;
  }

  void lay_out() {
    legend_top_ = split_margin + 20 + (picture_.subtitle.empty() ? 0 : 22);
    double y = legend_top_ + legend_->height() + 12;
    flow_top_ = y + section_head - 8;
    std::size_t next = 0;
    for (const auto& section : picture_.sections) {
      frames_.push_back({.top = y, .heading = heading_of(section)});
      y += section_head;
      for (const auto& step : section.steps) {
        place(step.before, above(step), &y);
        Band& band = bands_[next++];
        band.top = y;
        flow(step.input, y + node);
        y += band.height(picture_.ranks);
        flow(step.output, y);
        y += band_gap;
        place(step.after, step.output, &y);
      }
      frames_.back().bottom = y;
      y += section_gap;
    }
    flow_bottom_ = y - section_gap - 6;
    bytes_top_ = y + 12;
    bottom_ =
        bytes_top_ + line_height * static_cast<double>(1 + shown_ranks(picture_.ranks).size());
  }

  void titles() {
    svg_->text(split_margin, split_margin + 12, picture_.title,
               {{"font-size", 18}, {"font-weight", 600}, {"fill", palette::ink_colour}});
    if (!picture_.subtitle.empty())
      svg_->text(split_margin, split_margin + 34, picture_.subtitle,
                 {{"font-size", words_font}, {"fill", palette::quiet_colour}});
  }

  void frame(const Frame& frame) {
    svg_->element("rect", {{"class", "section"},
                           {"x", split_margin - 10},
                           {"y", frame.top},
                           {"width", right_ - split_margin + 20},
                           {"height", frame.bottom - frame.top},
                           {"rx", 6},
                           {"fill", palette::idle_colour},
                           {"stroke", palette::grid_line_colour}});
    svg_->text(drawing_x, frame.top + 20, frame.heading,
               {{"class", "heading"},
                {"font-size", step_font},
                {"font-weight", 600},
                {"fill", palette::ink_colour}});
  }

  void lane() {
    svg_->open("g", {{"class", "lane"}});
    for (const marks::Flow& flow : flows_) marks::draw_flow(*svg_, flow);
    if (!flows_.empty()) {
      marks::Flow last = flows_.back();
      last.top = last.bottom;
      last.bottom = flow_bottom_;
      marks::draw_flow(*svg_, last);
    }
    svg_->close();
  }

  // A step's mark on the lane, and a thin line to its matrices.
  void mark(double y) {
    const double half = lane_width / 2 - 4;
    svg_->element("path", {{"d", Path().move(lane_centre, y).line(drawing_x - 8, y).text()},
                           {"stroke", palette::idle_hatch_colour},
                           {"stroke-width", 2}});
    svg_->element("rect", {{"class", "mark"},
                           {"x", lane_centre - half},
                           {"y", y - 5},
                           {"width", 2 * half},
                           {"height", 10},
                           {"rx", 5},
                           {"fill", palette::background_colour},
                           {"stroke", palette::memory_line_colour}});
  }

  void step(const Band& band) {
    svg_->open("g", {{"class", "step"}});
    mark(band.top + node);
    const StepPlaces& places = band.places;
    const double top = band.top + places.top;
    for (const TensorPlace& one : places.boxes) {
      tensor(one, top);
      if (!one.label.empty())
        svg_->text(
            drawing_x + one.box.x, band.top + 9, one.label,
            {{"class", "label"}, {"font-size", small_font}, {"fill", palette::quiet_colour}});
    }
    sharing(places, top);
    double y = top + places.height;
    for (const std::string& one : places.shortened)
      svg_->text(drawing_x, y += 13, one,
                 {{"class", "note"}, {"font-size", 10}, {"fill", palette::quiet_colour}});
    words(band);
    svg_->close();
  }

  void words(const Band& band) {
    const auto& step = *band.step;
    double y = band.top + 12;
    svg_->text(words_x_, y, step.name,
               {{"class", "name"},
                {"font-size", step_font},
                {"font-weight", 600},
                {"fill", palette::ink_colour}});
    svg_->text(words_x_, y += line_height, facts_of(step),
               {{"class", "shape"}, {"font-size", small_font}, {"fill", palette::quiet_colour}});
    y += line_height + 2;
    if (!band.table.rows.empty()) {
      marks::draw_table(*svg_, band.table, words_x_, y);
      return;
    }
    marks::draw_swatch(*svg_, words_x_, y, palette::other_colour);
    svg_->text(words_x_ + swatch, y, whole_words(picture_, step),
               {{"class", "cell"}, {"font-size", words_font}, {"fill", palette::ink_colour}});
  }

  void outlined(const char* kind, const Box& box, std::string_view fill) {
    svg_->element("rect", {{"class", kind},
                           {"x", box.x},
                           {"y", box.y},
                           {"width", box.width},
                           {"height", box.height},
                           {"fill", fill},
                           {"stroke", palette::memory_line_colour},
                           {"stroke-width", 0.8}});
  }

  void tensor(const TensorPlace& place, double top) {
    Box box = place.box;
    box.x += drawing_x;
    box.y += top;
    const auto& tensor = *place.tensor;
    if (tensor.held.empty()) {
      outlined("tensor whole", box, palette::other_colour);
      return;
    }
    // The box has one part of a split that runs down, and all parts of one that runs to the right.
    const bool down = tensor.dimension == 0 && place.along_rows;
    const bool one_part = down && tensor.parts.size() > 1;
    const double origin = one_part ? static_cast<double>(part_begins(tensor)[place.part]) : 0;
    const auto whole = static_cast<double>(one_part ? tensor.parts[place.part].size
                                                    : tensor.shape[tensor.dimension]);
    for (int rank = 0; rank < picture_.ranks; ++rank) {
      const auto& held = tensor.held[static_cast<std::size_t>(rank)];
      for (std::size_t part = 0; part < held.size(); ++part) {
        if (held[part].size == 0 || (one_part && part != place.part)) continue;
        const double from = (static_cast<double>(held[part].begin) - origin) / whole;
        const double share = static_cast<double>(held[part].size) / whole;
        slice(rank, tensor, held[part],
              down ? Box{box.x, box.y + from * box.height, box.width, share * box.height}
                   : Box{box.x + from * box.width, box.y, share * box.width, box.height});
      }
    }
    outlined("tensor", box, "none");
  }

  void slice(int rank, const SplitPicture::Tensor& tensor, const SplitPicture::Range& range,
             const Box& box) {
    // White lines between thin slices would hide their colours.
    const bool separate = std::min(box.width, box.height) >= 6;
    svg_->open("g", {{"class", "slice"}});
    svg_->element("title", {},
                  text("rank ", rank, ": ", tensor.name, ", ",
                       tensor.dimension == 0 ? tensor.row_name : tensor.column_name, " ",
                       range.begin, "..", range.begin + range.size - 1));
    svg_->element("rect", {{"class", "held"},
                           {"x", box.x},
                           {"y", box.y},
                           {"width", box.width},
                           {"height", box.height},
                           {"fill", palette::slice_colour(rank)},
                           {"stroke", separate ? palette::background_colour : "none"},
                           {"stroke-width", 0.8}});
    const std::string number = text(rank);
    if (box.height >= 11 && box.width >= text_width(number, 10) + 2)
      svg_->text(box.x + box.width / 2, box.y + box.height / 2 + 3.6, number,
                 {{"class", "rank"},
                  {"font-size", 10},
                  {"text-anchor", "middle"},
                  {"fill", palette::ink_colour}});
    svg_->close();
  }

  // Right of the last part: the ranks that read each of its heads.
  void sharing(const StepPlaces& places, double top) {
    const double pitch = places.head_pitch, x = drawing_x + places.sharing_x;
    for (std::size_t i = 0; i < places.sharing.size(); ++i) {
      const double y = top + pitch * static_cast<double>(i);
      const Path bracket = Path()
                               .move(x, y + 1)
                               .line(x + 4, y + 1)
                               .line(x + 4, y + pitch - 1)
                               .line(x, y + pitch - 1);
      svg_->element("path", {{"class", "bracket"},
                             {"d", bracket.text()},
                             {"fill", "none"},
                             {"stroke", palette::memory_line_colour}});
      svg_->text(x + 9, y + pitch / 2 + 4, places.sharing[i],
                 {{"class", "sharing"}, {"font-size", small_font}, {"fill", palette::ink_colour}});
    }
  }

  // Filled where the forward waits for it.
  void messages(const Bar& bar) {
    const auto& exchange = *bar.exchange;
    const double height = height_of(exchange);
    const Direction main = exchange.forward.empty() ? Direction::Backward : Direction::Forward;
    svg_->open("g", {{"class", "exchange"}});
    svg_->element("rect", {{"class", "bar"},
                           {"x", split_margin},
                           {"y", bar.top + height / 2 - 5},
                           {"width", lane_width},
                           {"height", 10},
                           {"rx", 2},
                           {"fill", main == Direction::Forward ? marks::colour_of(main)
                                                               : palette::background_colour},
                           {"stroke", marks::colour_of(main)},
                           {"stroke-width", 1.6}});
    double y = bar.top + height / 2 - line_height * (lines_of(exchange) - 1) / 2 + 4;
    const auto lines = [&](const std::vector<SplitPicture::Message>& list, Direction direction) {
      for (const auto& message : list) {
        marks::draw_arrow(*svg_, drawing_x, y, direction);
        svg_->text(drawing_x + 18, y, direction == Direction::Forward ? "forward" : "backward",
                   {{"font-size", small_font}, {"fill", marks::colour_of(direction)}});
        svg_->text(
            drawing_x + message_words, y, words_of(message),
            {{"class", "message"}, {"font-size", words_font}, {"fill", palette::ink_colour}});
        y += line_height;
      }
    };
    lines(exchange.forward, Direction::Forward);
    lines(exchange.backward, Direction::Backward);
    svg_->close();
  }

  void bytes() {
    svg_->open("g", {{"class", "bytes"}});
    svg_->text(split_margin, bytes_top_, "Bytes of the parameters on each rank",
               {{"font-size", step_font}, {"font-weight", 600}, {"fill", palette::ink_colour}});
    marks::draw_table(*svg_, bytes_, split_margin, bytes_top_ + line_height + 2);
    svg_->close();
  }

  const SplitPicture& picture_;
  SplitTable bytes_;
  std::optional<SvgWriter> svg_;
  std::optional<marks::Legend> legend_;
  std::vector<Band> bands_;
  std::vector<marks::Flow> flows_;
  std::vector<Bar> bars_;
  std::vector<Frame> frames_;
  double words_x_ = 0, right_ = 0;
  double legend_top_ = 0, flow_top_ = 0, flow_bottom_ = 0, bytes_top_ = 0, bottom_ = 0;
};

}  // namespace

std::string to_svg_split(const SplitPicture& picture) {
  check_split(picture);
  return SplitDrawing(picture).draw();
}

}  // namespace trestle::view
