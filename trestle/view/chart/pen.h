#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/data/files/image.h"

// One drawing as two kinds of file: a pen draws the same picture as SVG and as pixels.
namespace trestle::view {

struct Spot {
  double x = 0, y = 0;
};

enum class Stroke { Solid, Dashed };

struct WordStyle {
  enum class Align { Left, Middle, Right };
  double size = 12;
  Align align = Align::Left;
  std::string_view colour = "#1d2733";
  bool strong = false;  // bold, in SVG only
};

// Coordinates are pixels of the SVG, from the upper left corner; colours are "#rrggbb".
class Pen {
 public:
  virtual ~Pen() = default;
  virtual void line(const std::vector<Spot>& through, std::string_view colour, double width,
                    Stroke stroke) = 0;
  virtual void dot(Spot at, double radius, std::string_view colour) = 0;
  virtual void box(Spot corner, double width, double height, std::string_view colour) = 0;
  // `at` lies on the baseline of the text.
  virtual void words(Spot at, std::string_view text, const WordStyle& style) = 0;
};

class SvgPen : public Pen {
 public:
  SvgPen(double width, double height, const std::string& title);
  ~SvgPen() override;
  void line(const std::vector<Spot>& through, std::string_view colour, double width,
            Stroke stroke) override;
  void dot(Spot at, double radius, std::string_view colour) override;
  void box(Spot corner, double width, double height, std::string_view colour) override;
  void words(Spot at, std::string_view text, const WordStyle& style) override;
  std::string finish() &&;  // the file

 private:
  struct Writer;
  std::unique_ptr<Writer> writer_;
};

// An image of twice the SVG's size in each direction, so that letters stay sharp.
class PixelPen : public Pen {
 public:
  PixelPen(double width, double height);
  ~PixelPen() override;
  void line(const std::vector<Spot>& through, std::string_view colour, double width,
            Stroke stroke) override;
  void dot(Spot at, double radius, std::string_view colour) override;
  void box(Spot corner, double width, double height, std::string_view colour) override;
  void words(Spot at, std::string_view text, const WordStyle& style) override;
  const data::Image& image() const;

 private:
  struct Drawing;
  std::unique_ptr<Drawing> drawing_;
};

}  // namespace trestle::view
