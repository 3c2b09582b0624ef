#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/schedule/timeline.h"

// Timelines as a trace for chrome://tracing or ui.perfetto.dev, and back.
//
// One process for each timeline, one thread for each rank, one slice for each event, flow arrows
// for what travels (activations, gradients, skips), one counter of memory for each rank. Everything
// a Timeline holds is in the file, so `trestle view RUN_FOLDER` draws runs/x/timeline.json again:
//
//   write_file("timeline.json", to_chrome_trace({simulated, measured}));
//   std::vector<schedule::Timeline> panels = from_chrome_trace(read_file("timeline.json"));
//
// Format: "Trace Event Format", Google 2016, the JSON object form.
namespace trestle::view {

// Throws UsageError for more events than viewers open.
inline constexpr std::size_t most_trace_events = 1'000'000;
std::string to_chrome_trace(const std::vector<schedule::Timeline>& timelines);

// The exact inverse. Events of other programs are ignored. Throws FormatError, which says where,
// for bytes that are not JSON, for a trace that no trestle wrote, and for values that make no
// timeline: an unknown rank or route, an action that cannot be read, an end before its begin.
// Limits: 4096 ranks, 32,767 stages and routes, 2^20 micro-batches, and stages x
// micro-batches 2^22.
std::vector<schedule::Timeline> from_chrome_trace(std::string_view json);

}  // namespace trestle::view
