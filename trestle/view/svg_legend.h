#pragma once

#include <string>
#include <vector>

#include "trestle/schedule/timeline.h"
#include "trestle/view/svg.h"
#include "trestle/view/svg_writer.h"

// The legend of a picture: the kinds that the picture shows, wrapped to its width. Not installed.
namespace trestle::view::parts {

class Legend {
 public:
  Legend(const std::vector<schedule::Timeline>& panels, const SvgOptions& options, double width);

  double height() const;                             // 0 for an empty legend
  void draw(SvgWriter& svg, double baseline) const;  // `baseline` of the first line

 private:
  struct Item {
    std::string label;
    std::string fill = {};    // a swatch of that colour
    std::string stroke = {};  // without `fill`: an arrow of that colour
    std::string dash = {};
    std::string head = {};
    double x = 0;  // from the left end of the legend
    int line = 0;
  };
  void add(Item item);

  double width_;
  std::vector<Item> items_;
  double next_x_ = 0;
};

}  // namespace trestle::view::parts
