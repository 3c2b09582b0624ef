#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <string>

#include "trestle/base/text.h"
#include "trestle/base/units.h"

namespace trestle::support {

// By how much predicted peaks of memory exceed measured ones.
class Excess {
 public:
  void add(Bytes predicted, Bytes measured) {
    const double ratio = static_cast<double>(predicted) / static_cast<double>(measured);
    least_ = std::min(least_, ratio);
    most_ = std::max(most_, ratio);
    sum_ += ratio;
    ++count_;
  }

  // A bound that exceeds the measurements by too much is of no use.
  void expect_tight(const std::string& name, double most_on_average) const {
    std::cout << text(name, ": predicted / measured from ", least_, " to ", most_, ", on average ",
                      sum_ / count_, "\n");
    EXPECT_LT(sum_ / count_, most_on_average);
  }

 private:
  double least_ = 1e9, most_ = 0, sum_ = 0;
  int count_ = 0;
};

}  // namespace trestle::support
