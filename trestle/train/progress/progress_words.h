#pragma once

#include <string>
#include <vector>

#include "trestle/train/progress/progress.h"

// Progress reports as lines of text.
namespace trestle::train {

// The header: run, model, stages, schedule, data.
std::vector<std::string> header_lines(const RunPlan& plan, Colours colours);

// The lines of a finished epoch. The first one begins with its bar and fits into the columns.
std::vector<std::string> epoch_lines(const EpochReport& report, Colours colours, int columns);

std::vector<std::string> done_lines(const TrainResult& result, Colours colours);

enum class StepOf { Training, Validation };

// "epoch 1/6  10/24  loss 0.412  learning rate 1e-04  40.7 images/s  5 s left, run 1 min 2 s"
std::string step_line(const StepReport& report, StepOf of);

// The words of a bar, as BarLine::words: the last ones are dropped first on a narrow terminal.
std::vector<std::string> step_words(const StepReport& report);

}  // namespace trestle::train
