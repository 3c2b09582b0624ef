#pragma once

#include <string>
#include <vector>

#include "trestle/train/progress.h"

// What a run says, as lines of text.
namespace trestle::train {

// The header: run, model, stages, schedule, data.
std::vector<std::string> header_lines(const RunPlan& plan, Colours colours);

// The first part of the first line, with its bar, in at most so many columns.
std::vector<std::string> epoch_lines(const EpochReport& report, Colours colours, int columns);

std::vector<std::string> done_lines(const TrainResult& result, Colours colours);

enum class StepOf { Training, Validation };

// "epoch 1/6  10/24  loss 0.412  learning rate 1e-04  40.7 images/s  5 s left, run 1 min 2 s"
std::string step_line(const StepReport& report, StepOf of);

// What a bar says of it, as BarLine::words: what is dropped first on a narrow terminal comes last.
std::vector<std::string> step_words(const StepReport& report);

}  // namespace trestle::train
