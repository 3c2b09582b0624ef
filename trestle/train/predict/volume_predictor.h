#pragma once

#include "trestle/train/predict/predictor.h"
#include "trestle/train/predict/run_weights.h"

// The half of predict() for runs that were trained on volumes. Not installed.
namespace trestle::train {

struct DataSet;  // data_set.h

// Predicts each volume of options.images window by window and writes its classes in the volume's
// own space.
PredictResult predict_volumes(const PredictOptions& options, RunWeights weights,
                              const DataSet& set);

}  // namespace trestle::train
