#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/view/chrome_trace.h"

// Reads a trace. The file may have been edited or truncated, so every value is checked before it is
// used.
namespace trestle::view {
namespace {

using nlohmann::json;
using schedule::Action;
using schedule::Event;
using schedule::Route;
using schedule::Timeline;

constexpr std::int64_t most_ranks = 4096;
constexpr std::int64_t most_stages = 32767;
constexpr std::int64_t most_micro_batches = std::int64_t{1} << 20;
constexpr std::int64_t most_trace_cells = std::int64_t{1} << 22;  // stages x micro-batches

[[noreturn]] void fail(const std::string& place, std::string_view what) {
  throw FormatError(text("timeline: ", place, ": ", what));
}

const json& field(const json& object, const char* key, const std::string& place) {
  if (!object.is_object()) fail(place, "expected an object");
  const auto found = object.find(key);
  if (found == object.end()) fail(place, text("'", key, "' is missing"));
  return *found;
}

std::int64_t integer(const json& value, std::int64_t low, std::int64_t high,
                     const std::string& place) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max());
  if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high) {
    fail(place, text("expected a whole number from ", low, " to ", high));
  }
  return value.get<std::int64_t>();
}

std::int64_t integer(const json& object, const char* key, std::int64_t low, std::int64_t high,
                     const std::string& place) {
  return integer(field(object, key, place), low, high, text(place, ", '", key, "'"));
}

double seconds(const json& object, const char* key, const std::string& place) {
  const json& value = field(object, key, place);
  const double result = value.is_number() ? value.get<double>() : std::nan("");
  if (!std::isfinite(result)) fail(place, text("'", key, "' is not a time"));
  return result;
}

std::string string(const json& object, const char* key, const std::string& place) {
  const json& value = field(object, key, place);
  if (!value.is_string()) fail(place, text("'", key, "' is not a string"));
  return value.get<std::string>();
}

const json& array(const json& object, const char* key, const std::string& place) {
  const json& value = field(object, key, place);
  if (!value.is_array()) fail(place, text("'", key, "' is not a list"));
  return value;
}

Route read_route(const json& value, int stages, const std::string& place) {
  const json& skip = field(value, "skip", place);
  if (!skip.is_boolean()) fail(place, "'skip' is not true or false");
  return {.from_stage = static_cast<int>(integer(value, "from_stage", 0, stages - 1, place)),
          .to_stage = static_cast<int>(integer(value, "to_stage", 0, stages - 1, place)),
          .skip = skip.get<bool>(),
          .name = string(value, "name", place)};
}

std::vector<Bytes> read_peaks(const json& value, const char* key, const std::string& place) {
  std::vector<Bytes> peaks;
  for (const json& bytes : array(value, key, place)) {
    peaks.push_back(
        integer(bytes, 0, std::numeric_limits<Bytes>::max(), text(place, ", '", key, "'")));
  }
  return peaks;
}

Timeline read_description(const json& value, const std::string& place) {
  Timeline timeline;
  timeline.title = string(value, "title", place);
  timeline.stages = static_cast<int>(integer(value, "stages", 0, most_stages, place));
  timeline.micro_batches =
      static_cast<int>(integer(value, "micro_batches", 0, most_micro_batches, place));
  if (std::int64_t{timeline.stages} * timeline.micro_batches > most_trace_cells) {
    fail(place, text(timeline.stages, " stages x ", timeline.micro_batches,
                     " micro-batches exceed the limit of ", most_trace_cells));
  }
  timeline.rank_count = static_cast<int>(integer(value, "ranks", 0, most_ranks, place));
  for (const json& rank : array(value, "rank_of_stage", place)) {
    timeline.rank_of_stage.push_back(
        static_cast<int>(integer(rank, 0, timeline.rank_count - 1, place + ", 'rank_of_stage'")));
  }
  if (value.contains("whole_layers"))
    for (const json& layer : array(value, "whole_layers", place)) {
      if (!layer.is_string()) fail(place, "'whole_layers' has an entry that is not a text");
      timeline.whole_layers.push_back(layer.get<std::string>());
    }
  if (value.contains("world_ranks")) {
    for (const json& rank : array(value, "world_ranks", place))
      timeline.world_ranks.push_back(
          static_cast<int>(integer(rank, 0, most_ranks, place + ", 'world_ranks'")));
    if (static_cast<int>(timeline.world_ranks.size()) != timeline.rank_count)
      fail(place, text("'world_ranks' names ", timeline.world_ranks.size(), " ranks of ",
                       timeline.rank_count));
  }
  if (value.contains("host_of_rank")) {
    for (const json& host : array(value, "host_of_rank", place))
      timeline.host_of_rank.push_back(
          static_cast<int>(integer(host, 0, most_ranks, place + ", 'host_of_rank'")));
    if (static_cast<int>(timeline.host_of_rank.size()) != timeline.rank_count)
      fail(place, text("'host_of_rank' names ", timeline.host_of_rank.size(), " ranks of ",
                       timeline.rank_count));
  }
  if (static_cast<int>(timeline.rank_of_stage.size()) > timeline.stages) {
    fail(place, text("'rank_of_stage' names ", timeline.rank_of_stage.size(), " stages of ",
                     timeline.stages));
  }
  const json& routes = array(value, "routes", place);
  if (routes.size() > most_stages)
    fail(place, text(routes.size(), " routes exceed the limit of ", most_stages));
  for (const json& route : routes) {
    timeline.routes.push_back(read_route(route, timeline.stages, place + ", a route"));
  }
  timeline.peak_bytes = read_peaks(value, "peak_bytes", place);
  if (!value.contains("device_of_stage")) return timeline;  // written by an earlier version
  for (const json& device : array(value, "device_of_stage", place)) {
    timeline.device_of_stage.push_back(
        static_cast<int>(integer(device, 0, most_stages, place + ", 'device_of_stage'")));
  }
  timeline.device_peak_bytes = read_peaks(value, "device_peak_bytes", place);
  return timeline;
}

// The action in `key` of a slice, with its route.
Action read_action(const json& args, const char* key, const Timeline& timeline,
                   const std::string& place) {
  Action action;
  try {
    action = schedule::parse_action(string(args, key, place));
  } catch (const Error& error) {
    fail(place, error.what());
  }
  if (args.contains("route")) {
    const auto most = static_cast<std::int64_t>(timeline.routes.size()) - 1;
    action.route = static_cast<std::int16_t>(integer(args, "route", 0, most, place));
  }
  if (action.route >= static_cast<int>(timeline.routes.size())) {
    fail(place, text("route ", action.route, " of ", timeline.routes.size()));
  }
  if (action.stage >= timeline.stages || action.micro_batch >= timeline.micro_batches) {
    fail(place, text(schedule::to_string(action), " is outside of ", timeline.stages,
                     " stages and ", timeline.micro_batches, " micro-batches"));
  }
  return action;
}

// An event of a rank, or what leaves a host.
template <class Slice>
Slice read_slice(const json& args, const char* key, int rank, const Timeline& timeline,
                 const std::string& place) {
  Slice slice;
  slice.rank = rank;
  slice.begin = seconds(args, "begin", place);
  slice.end = seconds(args, "end", place);
  if (slice.end < slice.begin) fail(place, "ends before it begins");
  slice.action = read_action(args, key, timeline, place);
  return slice;
}

void read_slice(const json& value, Timeline& timeline, const std::string& place) {
  const json& args = field(value, "args", place);
  const std::int64_t last = timeline.rank_count - 1;
  if (args.contains("tensor_message")) {
    schedule::TensorMessage message{
        .rank = static_cast<int>(integer(args, "rank", 0, last, place)),
        .kind = static_cast<MessageKind>(
            integer(args, "tensor_message", 0, static_cast<int>(MessageKind::AllToAll), place)),
        .bytes = integer(args, "bytes", 0, std::numeric_limits<Bytes>::max(), place),
        .begin = seconds(args, "begin", place),
        .wait = seconds(args, "wait", place),
        .end = seconds(args, "end", place)};
    if (message.wait < message.begin || message.end < message.wait)
      fail(place, "ends before it begins");
    timeline.tensor_messages.push_back(message);
    return;
  }
  if (args.contains("crossing")) {
    const auto rank = static_cast<int>(integer(args, "rank", 0, last, place));
    auto crossing = read_slice<schedule::Crossing>(args, "crossing", rank, timeline, place);
    crossing.host = static_cast<int>(integer(args, "host", 0, most_ranks, place));
    timeline.crossings.push_back(crossing);
    return;
  }
  const auto rank = static_cast<int>(integer(value, "tid", 0, last, place));
  timeline.events.push_back(read_slice<Event>(args, "action", rank, timeline, place));
}

void read_counter(const json& value, Timeline& timeline, const std::string& place) {
  const json& args = field(value, "args", place);
  timeline.memory.push_back(
      {.rank = static_cast<int>(integer(value, "tid", 0, timeline.rank_count - 1, place)),
       .time = seconds(value, "time", place),
       .bytes = integer(args, "bytes", std::numeric_limits<Bytes>::min(),
                        std::numeric_limits<Bytes>::max(), place)});
}

// Slices with an action and counters with a time were written by trestle.
void read_event(const json& value, std::vector<Timeline>& timelines, const std::string& place) {
  if (!value.is_object() || !value.contains("ph")) return;
  const std::string phase = string(value, "ph", place);
  const bool slice =
      phase == "X" && value.contains("args") &&
      (value.at("args").contains("action") || value.at("args").contains("crossing") ||
       value.at("args").contains("tensor_message"));
  const bool counter = phase == "C" && value.contains("time");
  if (!slice && !counter) return;
  const auto most = static_cast<std::int64_t>(timelines.size()) - 1;
  Timeline& timeline = timelines[static_cast<std::size_t>(integer(value, "pid", 0, most, place))];
  slice ? read_slice(value, timeline, place) : read_counter(value, timeline, place);
}

}  // namespace

std::vector<Timeline> from_chrome_trace(std::string_view content) {
  json trace;
  try {
    trace = json::parse(content);
  } catch (const json::exception& error) {
    const std::string_view words = error.what();  // without the library's "[...] " prefix
    throw FormatError(
        text("timeline: not JSON: ",
             content.empty() ? "the file is empty" : words.substr(words.find("] ") + 2)),
        {.hint = "The file may be truncated; the run writes it again."});
  }
  if (!trace.is_object() || !trace.contains("otherData") || !trace["otherData"].is_object() ||
      !trace["otherData"].contains("trestle")) {
    throw FormatError("timeline: trestle did not write this trace",
                      {.hint = "'otherData' of the file must hold 'trestle'."});
  }
  const json& own = trace["otherData"]["trestle"];
  integer(own, "version", 1, 1, "'trestle'");
  std::vector<Timeline> timelines;
  for (const json& value : array(own, "timelines", "'trestle'")) {
    timelines.push_back(read_description(value, text("timeline ", timelines.size())));
  }
  std::size_t index = 0;
  for (const json& value : array(trace, "traceEvents", "the trace")) {
    read_event(value, timelines, text("event ", index++));
  }
  return timelines;
}

}  // namespace trestle::view
