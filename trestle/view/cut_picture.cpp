#include "trestle/view/cut_picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/view/palette.h"
#include "trestle/view/svg_writer.h"
#include "trestle/view/time_axis.h"

namespace trestle::view {
namespace {

constexpr double cut_margin = 28;
constexpr double gap = 18;           // between columns
constexpr double time_width = 300;   // of the longest bar
constexpr double bytes_width = 190;  // the same
constexpr double value_width = 62;   // the number right of a bar
constexpr double facts_width = 190;  // the totals of a stage
constexpr double most_name_width = 230;
constexpr double fact_line = 16;
constexpr double stage_gap = 18;       // with the cut in its middle
constexpr double bar_share = 0.62;     // of a row's height
constexpr double second_shade = 0.55;  // backward and activations are lighter
constexpr std::size_t most_layers = 2000;

void check(const CutPicture& picture) {
  if (picture.layers.size() > most_layers)
    throw UsageError(text(picture.layers.size(), " layers are too many for a picture"),
                     {.hint = text("A picture has at most ", most_layers, " layers.")});
  const auto layers = static_cast<int>(picture.layers.size());
  int covered = 0;
  for (const auto& stage : picture.stages) {
    if (stage.layers < 1 || stage.layers > layers)
      throw UsageError(text("a stage of ", stage.layers, " layers cannot be drawn"));
    covered += stage.layers;
  }
  if (covered != layers)
    throw UsageError(text("the stages have ", covered, " layers, the model has ", layers));
  for (const auto& skip : picture.skips) {
    if (skip.from < 0 || skip.to <= skip.from || skip.to >= layers)
      throw UsageError(
          text("a skip cannot go from layer ", skip.from, " to ", skip.to, " of ", layers));
  }
}

// The byte offsets of the characters of a UTF-8 name, and its size.
std::vector<std::size_t> places(std::string_view name) {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < name.size(); ++i)
    if ((static_cast<unsigned char>(name[i]) & 0xC0) != 0x80) result.push_back(i);
  result.push_back(name.size());
  return result;
}

// Leaves out the middle of a long name, because the ends identify nested layers.
std::string fit(const std::string& name, double width, double font_size) {
  if (text_width(name, font_size) <= width) return name;
  const std::vector<std::size_t> at = places(name);
  for (std::size_t kept = at.size() - 1; kept-- > 2;) {
    const std::size_t head = kept / 2;
    const std::size_t tail = kept - head;
    std::string shorter = name.substr(0, at[head]) + "…" + name.substr(at[at.size() - 1 - tail]);
    if (text_width(shorter, font_size) <= width) return shorter;
  }
  return "…";
}

// Three digits, to tell bars of similar length apart.
std::string time_text(double seconds) {
  const double value = seconds >= 1 ? seconds : seconds >= 1e-3 ? 1e3 * seconds : 1e6 * seconds;
  const int decimals = value >= 99.95 || seconds < 1e-3 ? 0 : value >= 9.995 ? 1 : 2;
  return decimal(value, decimals) + (seconds >= 1 ? " s" : seconds >= 1e-3 ? " ms" : " us");
}

// The unit of a byte axis.
struct ByteUnit {
  double bytes;
  std::string_view name;
};
ByteUnit byte_unit(double most) {
  constexpr std::array<ByteUnit, 5> units = {{{1024.0 * 1024 * 1024 * 1024, "TiB"},
                                              {1024.0 * 1024 * 1024, "GiB"},
                                              {1024.0 * 1024, "MiB"},
                                              {1024, "KiB"},
                                              {1, "B"}}};
  for (const ByteUnit& unit : units)
    if (most >= unit.bytes) return unit;
  return units.back();
}

class Drawing {
 public:
  explicit Drawing(const CutPicture& picture) : picture_(picture) {
    const std::size_t count = picture.layers.size();
    row_height_ = count <= 12 ? 24 : count <= 30 ? 20 : 17;
    font_size_ = count <= 30 ? 12 : 11;
    for (const auto& layer : picture.layers) {
      most_seconds_ = std::max(most_seconds_, layer.forward + layer.backward);
      most_bytes_ = std::max(most_bytes_, static_cast<double>(layer.weights + layer.kept));
      seconds_ += layer.forward + layer.backward;
      names_width_ = std::max(names_width_, text_width(layer.name, font_size_));
    }
    names_width_ = std::clamp(names_width_, 60.0, most_name_width);
    if (!(most_seconds_ > 0)) most_seconds_ = 1;
    if (!(most_bytes_ > 0)) most_bytes_ = 1;
    names_ = cut_margin + (picture.skips.empty() ? 0 : arcs_width() + 8);
    time_ = names_ + number_width() + names_width_ + gap;
    bytes_ = time_ + time_width + value_width + gap;
    facts_ = bytes_ + bytes_width + value_width + gap;
    right_ = facts_ + facts_width;
    place_rows();
  }

  std::string draw() {
    svg_.emplace(
        SvgWriter::Options{.width = right_ + cut_margin,
                           .height = bottom_ + cut_margin + (picture_.skips.empty() ? 0 : 16),
                           .title = picture_.title});
    titles();
    legend();
    axes();
    for (std::size_t s = 0; s < picture_.stages.size(); ++s) stage(s);
    arcs();
    return std::move(*svg_).finish();
  }

 private:
  double number_width() const { return text_width(text(picture_.layers.size()), font_size_) + 10; }
  double arc_depth(int layers) const { return std::min(arcs_width(), 8 + 9 * std::sqrt(layers)); }
  double arcs_width() const {
    int farthest = 0;
    for (const auto& skip : picture_.skips) farthest = std::max(farthest, skip.to - skip.from);
    return std::min(90.0, 8 + 9 * std::sqrt(farthest));
  }
  double time_x(double seconds) const { return time_ + seconds / most_seconds_ * time_width; }
  double bytes_x(double bytes) const { return bytes_ + bytes / most_bytes_ * bytes_width; }
  double middle(int layer) const {
    return rows_[static_cast<std::size_t>(layer)] + row_height_ / 2;
  }
  std::size_t stage_of(int layer) const {
    std::size_t stage = 0;
    for (int end = picture_.stages[0].layers; layer >= end;) end += picture_.stages[++stage].layers;
    return stage;
  }

  // A stage with one layer gets enough height for its totals.
  void place_rows() {
    top_ =
        cut_margin + (picture_.title.empty() ? 0 : 24) + (picture_.subtitle.empty() ? 0 : 20) + 84;
    double y = top_;
    for (const auto& stage : picture_.stages) {
      tops_.push_back(y);
      for (int i = 0; i < stage.layers; ++i) rows_.push_back(y + i * row_height_);
      y += std::max(stage.layers * row_height_, 4 * fact_line) + stage_gap;
    }
    bottom_ = y - (picture_.stages.empty() ? 0 : stage_gap);
  }

  void titles() {
    double y = cut_margin + 12;
    if (!picture_.title.empty()) {
      svg_->text(cut_margin, y, picture_.title,
                 {{"font-size", 18}, {"font-weight", 600}, {"fill", palette::ink_colour}});
      y += 22;
    }
    if (!picture_.subtitle.empty())
      svg_->text(cut_margin, y, picture_.subtitle,
                 {{"font-size", 12}, {"fill", palette::quiet_colour}});
  }

  // The two shades of every stage's colour, above the columns that use them.
  void legend() {
    const double y = top_ - 58;
    svg_->open("g", {{"class", "legend"}, {"font-size", 11.5}, {"fill", palette::ink_colour}});
    const auto entry = [&](double x, double shade, std::string_view words) {
      svg_->element("rect", {{"x", x},
                             {"y", y - 9},
                             {"width", 12},
                             {"height", 10},
                             {"rx", 1.5},
                             {"fill", palette::lighter(palette::quiet_colour, shade)}});
      svg_->text(x + 17, y, words);
      return x + 17 + text_width(words, 11.5) + 16;
    };
    entry(entry(time_, 0, "forward"), second_shade, "backward");
    entry(entry(bytes_, 0, "weights"), second_shade, "kept for the backward");
    if (!picture_.skips.empty())
      svg_->text(cut_margin, bottom_ + 24, "arcs: skips, dark where they cross a cut",
                 {{"fill", palette::quiet_colour}});
    svg_->close();
  }

  void axis(double left, double width, double length, std::string_view caption,
            const std::vector<Tick>& ticks) {
    svg_->open("g", {{"class", "axis"}, {"font-size", 11}, {"fill", palette::quiet_colour}});
    svg_->text(left, top_ - 36, caption);
    for (const Tick& tick : ticks) {
      const double x = left + tick.at / length * width;
      if (x > left + width + 0.5) continue;
      svg_->element("path", {{"d", Path().move(x, top_ - 10).line(x, bottom_).text()},
                             {"stroke", palette::grid_line_colour}});
      svg_->text(x, top_ - 16, tick.label, {{"text-anchor", "middle"}});
    }
    svg_->close();
  }

  void axes() {
    if (picture_.layers.empty()) return;
    axis(time_, time_width, most_seconds_,
         text("time of one micro-batch, ", axis_unit(most_seconds_, TimeUnit::Seconds)),
         ticks(most_seconds_, TimeUnit::Seconds, 6));
    const ByteUnit unit = byte_unit(most_bytes_);
    axis(bytes_, bytes_width, most_bytes_ / unit.bytes, text("memory, ", unit.name),
         round_ticks(0, most_bytes_ / unit.bytes, 5));
  }

  void stage(std::size_t s) {
    const auto& stage = picture_.stages[s];
    if (s > 0) {
      const double y = tops_[s] - stage_gap / 2;
      svg_->element("path", {{"class", "cut"},
                             {"d", Path().move(names_, y).line(right_, y).text()},
                             {"stroke", palette::ink_colour},
                             {"stroke-dasharray", "5 4"}});
    }
    svg_->open("g", {{"class", "stage"}});
    double seconds = 0;
    for (int i = 0; i < stage.layers; ++i) {
      const auto& layer = picture_.layers[static_cast<std::size_t>(next_)];
      seconds += layer.forward + layer.backward;
      row(next_++, layer, palette::line_colour(s));
    }
    facts(s, seconds);
    svg_->close();
  }

  void row(int number, const CutPicture::Layer& layer, std::string_view colour) {
    const double baseline = middle(number) + font_size_ * 0.36;
    svg_->open("g", {{"class", "layer"}, {"font-size", font_size_}});
    svg_->element("title", {},
                  text(layer.name, ": forward ", format_duration(layer.forward), ", backward ",
                       format_duration(layer.backward), ", weights ", format_bytes(layer.weights),
                       ", kept ", format_bytes(layer.kept)));
    svg_->text(names_ + number_width() - 8, baseline, text(number),
               {{"fill", palette::quiet_colour}, {"text-anchor", "end"}});
    svg_->text(names_ + number_width(), baseline, fit(layer.name, names_width_, font_size_),
               {{"class", "name"}, {"fill", palette::ink_colour}});
    bars(number, colour, time_, time_x(layer.forward), time_x(layer.forward + layer.backward),
         time_text(layer.forward + layer.backward));
    const auto weights = static_cast<double>(layer.weights);
    const auto kept = static_cast<double>(layer.kept);
    bars(number, colour, bytes_, bytes_x(weights), bytes_x(weights + kept),
         layer.weights + layer.kept > 0 ? format_bytes(layer.weights + layer.kept) : "");
    svg_->close();
  }

  void bars(int number, std::string_view colour, double from, double first, double second,
            const std::string& words) {
    const double height = row_height_ * bar_share;
    const auto bar = [&](double left, double right, double shade) {
      if (right - left < 0.05) return;
      svg_->element("rect", {{"class", "bar"},
                             {"x", left},
                             {"y", middle(number) - height / 2},
                             {"width", right - left},
                             {"height", height},
                             {"fill", palette::lighter(colour, shade)}});
    };
    bar(from, first, 0);
    bar(first, second, second_shade);
    svg_->text(second + 6, middle(number) + 3.8, words,
               {{"font-size", 10.5}, {"fill", palette::quiet_colour}});
  }

  // The totals of the stage, beside a line in its colour.
  void facts(std::size_t s, double seconds) {
    const auto& stage = picture_.stages[s];
    const double top = tops_[s];
    const double end = s + 1 < tops_.size() ? tops_[s + 1] - stage_gap : bottom_;
    svg_->element("rect", {{"x", facts_},
                           {"y", top},
                           {"width", 4},
                           {"height", end - top},
                           {"rx", 2},
                           {"fill", palette::line_colour(s)}});
    double y = top + 12;
    const auto line = [&](const std::string& words, std::string_view colour, double weight) {
      svg_->text(facts_ + 14, y, fit(words, facts_width - 14, 12),
                 {{"font-size", 12}, {"font-weight", weight}, {"fill", colour}});
      y += fact_line;
    };
    const double ideal = seconds_ / static_cast<double>(picture_.stages.size());
    line(text("stage ", s, stage.device.empty() ? "" : " · " + stage.device), palette::ink_colour,
         600);
    line(text(stage.layers, stage.layers == 1 ? " layer" : " layers"), palette::quiet_colour, 400);
    line(text(time_text(seconds),
              ideal > 0 ? text(" · ", std::lround(100 * seconds / ideal), " % of ideal") : ""),
         palette::quiet_colour, 400);
    if (stage.peak > 0)
      line(text("peak ", format_bytes(stage.peak),
                stage.budget > 0 ? " of " + format_bytes(stage.budget) : ""),
           stage.budget > 0 && stage.peak > stage.budget ? palette::skip_gradient_colour
                                                         : palette::quiet_colour,
           400);
  }

  void arcs() {
    for (const auto& skip : picture_.skips) {
      const bool crosses = stage_of(skip.from) != stage_of(skip.to);
      const double x = names_ - 4;
      const double bulge =
          x - arc_depth(skip.to - skip.from) * 4 / 3;  // a curve reaches 3/4 of its control points
      const double from = middle(skip.from) + 1.5;
      const double to = middle(skip.to) - 1.5;
      svg_->element("path",
                    {{"class", crosses ? "skip crossing" : "skip"},
                     {"d", Path().move(x, from).curve(bulge, from, bulge, to, x, to).text()},
                     {"fill", "none"},
                     {"stroke", crosses ? palette::skip_colour : palette::axis_colour},
                     {"stroke-width", crosses ? 1.6 : 1.2}});
      svg_->element("circle", {{"cx", x},
                               {"cy", to},
                               {"r", 2},
                               {"fill", crosses ? palette::skip_colour : palette::axis_colour}});
    }
  }

  const CutPicture& picture_;
  std::optional<SvgWriter> svg_;
  double row_height_, font_size_;
  double names_width_ = 0;
  double seconds_ = 0, most_seconds_ = 0, most_bytes_ = 0;
  double names_, time_, bytes_, facts_, right_;  // left edges of the columns
  double top_ = 0, bottom_ = 0;
  std::vector<double> rows_, tops_;  // y of layers and of stages
  int next_ = 0;                     // the next layer to draw
};

}  // namespace

std::string to_svg_cut(const CutPicture& picture) {
  check(picture);
  return Drawing(picture).draw();
}

}  // namespace trestle::view
