#include "trestle/pipeline/transport/missed_deadline.h"

#include "trestle/base/text.h"
#include "trestle/base/units.h"

namespace trestle::pipeline {

std::string describe_missed_deadline(const schedule::Route& route,
                                     const schedule::Transfer& transfer, int rank, int from,
                                     std::chrono::milliseconds deadline,
                                     const std::string& status) {
  const bool gradient = transfer.way == schedule::Transfer::Way::Gradient;
  return text("rank ", rank, " waited ",
              format_duration(static_cast<double>(deadline.count()) / 1e3), " for ",
              gradient ? "the gradient" : "the activations",
              route.skip ? " of skip '" + route.name + "'" : "", " of micro-batch ",
              transfer.micro_batch, " from rank ", from, ", which ", status);
}

}  // namespace trestle::pipeline
