#include "trestle/view/chrome_trace.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/view/labels.h"
#include "trestle/view/links.h"

namespace trestle::view {
namespace {

using nlohmann::ordered_json;
using schedule::Event;
using schedule::MemorySample;
using schedule::Route;
using schedule::Timeline;

constexpr double microseconds_a_second = 1e6;  // the format's unit

ordered_json metadata(const char* what, int process, int thread, ordered_json args) {
  return {{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", args}};
}

// The file's events, one on each line, for readable files and diffs. They are appended as text,
// because a JSON tree of a large trace takes ten times the memory.
class EventList {
 public:
  void add(const ordered_json& event) {
    text_ += separator_ + dump(event);
    separator_ = ",\n";
  }
  std::string take() { return std::move(text_); }

  static std::string dump(const ordered_json& json) {
    return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  }

 private:
  std::string text_;
  const char* separator_ = "\n";
};

// The messages of a rank's tensor group have a row of their own, below the ranks and hosts.
int tensor_thread(const Timeline& timeline, int rank) {
  const std::vector<int> hosts = schedule::hosts_of(timeline);
  return timeline.rank_count + (hosts.empty() ? 0 : hosts.back() + 1) + rank;
}

void add_names(EventList& events, const Timeline& timeline, int process) {
  events.add(metadata("process_name", process, 0, {{"name", timeline.title}}));
  events.add(metadata("process_sort_index", process, 0, {{"sort_index", process}}));
  for (int rank = 0; rank < timeline.rank_count; ++rank) {
    events.add(
        metadata("thread_name", process, rank, {{"name", schedule::rank_name(timeline, rank)}}));
    events.add(metadata("thread_sort_index", process, rank, {{"sort_index", rank}}));
  }
  if (!timeline.tensor_messages.empty())
    for (int rank = 0; rank < timeline.rank_count; ++rank)
      events.add(metadata("thread_name", process, tensor_thread(timeline, rank),
                          {{"name", schedule::rank_name(timeline, rank) + " tensor ranks"}}));
  if (timeline.crossings.empty()) return;
  for (const int host : schedule::hosts_of(timeline))
    events.add(metadata("thread_name", process, timeline.rank_count + host,
                        {{"name", text("from host ", host)}}));
}

// `args` holds the exact times, because the format's microseconds are rounded.
ordered_json slice(const Event& event, int process) {
  ordered_json args = {
      {"action", schedule::to_string(event.action)}, {"begin", event.begin}, {"end", event.end}};
  if (event.action.route >= 0) args["route"] = event.action.route;
  return {{"ph", "X"},
          {"name", schedule::to_string(event.action)},
          {"cat", kind_name(event.action.kind)},
          {"pid", process},
          {"tid", event.rank},
          {"ts", event.begin * microseconds_a_second},
          {"dur", (event.end - event.begin) * microseconds_a_second},
          {"args", args}};
}

// A crossing is in a row of its host, below the ranks.
ordered_json crossing_slice(const schedule::Crossing& crossing, const Timeline& timeline,
                            int process) {
  ordered_json args = {{"crossing", schedule::to_string(crossing.action)},
                       {"host", crossing.host},
                       {"rank", crossing.rank},
                       {"begin", crossing.begin},
                       {"end", crossing.end}};
  if (crossing.action.route >= 0) args["route"] = crossing.action.route;
  return {{"ph", "X"},
          {"name", schedule::to_string(crossing.action)},
          {"cat", "link"},
          {"pid", process},
          {"tid", timeline.rank_count + crossing.host},
          {"ts", crossing.begin * microseconds_a_second},
          {"dur", (crossing.end - crossing.begin) * microseconds_a_second},
          {"args", args}};
}

ordered_json tensor_slice(const schedule::TensorMessage& message, const Timeline& timeline,
                          int process) {
  const std::string name(schedule::tensor_message_name(message.kind));
  return {{"ph", "X"},
          {"name", name},
          {"cat", "tensor"},
          {"pid", process},
          {"tid", tensor_thread(timeline, message.rank)},
          {"ts", message.begin * microseconds_a_second},
          {"dur", (message.end - message.begin) * microseconds_a_second},
          {"args",
           {{"tensor_message", static_cast<int>(message.kind)},
            {"rank", message.rank},
            {"bytes", message.bytes},
            {"begin", message.begin},
            {"wait", message.wait},
            {"end", message.end}}}};
}

// Viewers attach a flow to the slice at its time, so both ends are at the middle of a compute
// slice.
ordered_json flow_end(const char* phase, const std::string& name, std::int64_t id,
                      const Event& event, int process) {
  ordered_json end = {{"ph", phase},
                      {"name", name},
                      {"cat", "flow"},
                      {"id", id},
                      {"pid", process},
                      {"tid", event.rank},
                      {"ts", (event.begin + event.end) / 2 * microseconds_a_second}};
  if (*phase == 'f') end["bp"] = "e";
  return end;
}

std::string flow_name(const Link& link, const Timeline& timeline) {
  switch (link.kind) {
    case LinkKind::Activation:
      return "activation";
    case LinkKind::Gradient:
      return "gradient";
    case LinkKind::Skip:
      return "skip " + timeline.routes[link.route].name;
    case LinkKind::SkipGradient:
      return "gradient of skip " + timeline.routes[link.route].name;
  }
  return "";
}

ordered_json counter(const Timeline& timeline, const MemorySample& sample, int process) {
  return {{"ph", "C"},
          {"name", "memory " + schedule::rank_name(timeline, sample.rank)},
          {"pid", process},
          {"tid", sample.rank},
          {"ts", sample.time * microseconds_a_second},
          {"time", sample.time},
          {"args", {{"bytes", sample.bytes}}}};
}

ordered_json description(const Timeline& timeline) {
  ordered_json routes = ordered_json::array();
  for (const Route& route : timeline.routes) {
    routes.push_back({{"from_stage", route.from_stage},
                      {"to_stage", route.to_stage},
                      {"skip", route.skip},
                      {"name", route.name}});
  }
  ordered_json all = {{"title", timeline.title},
                      {"stages", timeline.stages},
                      {"micro_batches", timeline.micro_batches},
                      {"ranks", timeline.rank_count},
                      {"rank_of_stage", timeline.rank_of_stage},
                      {"routes", routes},
                      {"peak_bytes", timeline.peak_bytes},
                      {"device_of_stage", timeline.device_of_stage},
                      {"device_peak_bytes", timeline.device_peak_bytes}};
  if (!timeline.world_ranks.empty()) all["world_ranks"] = timeline.world_ranks;
  if (!timeline.host_of_rank.empty()) all["host_of_rank"] = timeline.host_of_rank;
  if (!timeline.whole_layers.empty()) all["whole_layers"] = timeline.whole_layers;
  return all;
}

}  // namespace

std::string to_chrome_trace(const std::vector<Timeline>& timelines) {
  std::size_t count = 0;
  for (const Timeline& timeline : timelines)
    count += timeline.events.size() + timeline.crossings.size() + timeline.tensor_messages.size();
  if (count > most_trace_events) {
    throw UsageError(text("a trace of ", count, " events is too large: at most ", most_trace_events,
                          " can be written"),
                     {.hint = "Write the table as CSV, or use fewer stages or micro-batches."});
  }
  ordered_json descriptions = ordered_json::array();
  EventList events;
  std::int64_t flow = 0;
  for (std::size_t i = 0; i < timelines.size(); ++i) {
    const Timeline& timeline = timelines[i];
    const int process = static_cast<int>(i);
    descriptions.push_back(description(timeline));
    add_names(events, timeline, process);
    for (const Event& event : timeline.events) events.add(slice(event, process));
    for (const Link& link : links(timeline)) {
      const std::string name = flow_name(link, timeline);
      events.add(flow_end("s", name, flow, timeline.events[link.from], process));
      events.add(flow_end("f", name, flow, timeline.events[link.to], process));
      ++flow;
    }
    for (const auto& crossing : timeline.crossings)
      events.add(crossing_slice(crossing, timeline, process));
    for (const auto& message : timeline.tensor_messages)
      events.add(tensor_slice(message, timeline, process));
    for (const MemorySample& sample : timeline.memory)
      events.add(counter(timeline, sample, process));
  }
  return text("{\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"trestle\":{\"version\":1,",
              "\"timelines\":", EventList::dump(descriptions), "}},\n\"traceEvents\":[",
              events.take(), "\n]}\n");
}

}  // namespace trestle::view
