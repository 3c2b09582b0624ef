#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/pipeline/execute/stage.h"

namespace trestle::pipeline {

// The stages of this process: all stages of the model, or over ranks this rank's own.
class StageList {
 public:
  // `count`: of the whole model. `here`: those of this process, in order.
  StageList(int count, std::vector<Stage> here)
      : places_(static_cast<std::size_t>(count), nowhere), here_(std::move(here)) {
    for (std::size_t i = 0; i < here_.size(); ++i)
      places_.at(static_cast<std::size_t>(here_[i].index())) = i;
  }

  // The number of stages of the whole model.
  int count() const { return static_cast<int>(places_.size()); }
  bool has(int stage) const { return places_.at(static_cast<std::size_t>(stage)) != nowhere; }
  bool has_last() const { return has(count() - 1); }
  const Stage& operator[](int stage) const { return here_[place(stage)]; }
  // The number of a stage among those of this process, from 0. Throws StateError for a stage of
  // another rank.
  std::size_t place(int stage) const {
    if (!has(stage)) throw StateError(text("stage ", stage, " is on another rank"));
    return places_[static_cast<std::size_t>(stage)];
  }
  const Stage& last() const { return (*this)[count() - 1]; }

  // The stages of this process.
  auto begin() const { return here_.begin(); }
  auto end() const { return here_.end(); }

 private:
  static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);
  std::vector<std::size_t> places_;  // [stage] in here_
  std::vector<Stage> here_;
};

}  // namespace trestle::pipeline
