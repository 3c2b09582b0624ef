#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/schedule/timeline.h"

// Writes timelines as traces for chrome://tracing or ui.perfetto.dev, and reads them back.
//
// Each timeline is a process, each rank a thread, and each event a slice. Flow arrows show
// transfers (activations, gradients, skips), and each rank has a counter of its memory. The file
// holds everything in a Timeline, so `trestle view RUN_FOLDER` can draw runs/x/timeline.json:
//
//   write_file("timeline.json", to_chrome_trace({simulated, measured}));
//   std::vector<schedule::Timeline> panels = from_chrome_trace(read_file("timeline.json"));
//
// Format: "Trace Event Format", Google 2016, the JSON object form.
namespace trestle::view {

// Throws UsageError for more events than trace viewers can open.
inline constexpr std::size_t most_trace_events = 1'000'000;
std::string to_chrome_trace(const std::vector<schedule::Timeline>& timelines);

// The exact inverse. Events of other programs are ignored. Throws FormatError with the place for
// text that is not JSON, for a trace that trestle did not write, and for invalid values: an unknown
// rank or route, an action that cannot be parsed, an end before its begin. Limits: 4096 ranks,
// 32,767 stages and routes, 2^20 micro-batches, and stages x micro-batches 2^22.
std::vector<schedule::Timeline> from_chrome_trace(std::string_view json);

}  // namespace trestle::view
