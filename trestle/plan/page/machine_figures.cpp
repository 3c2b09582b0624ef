#include "trestle/plan/page/machine_figures.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/view/time_axis.h"

namespace trestle::plan {
namespace {

std::string plain(double value) { return view::decimal(value, 3, view::Zeros::Drop); }

std::string share(double value) {
  return text(view::decimal(100 * value, 1, view::Zeros::Drop), " %");
}

std::string bytes(double value) { return format_bytes(std::llround(std::min(value, 9e18))); }

std::string per_second(double value) { return format_bandwidth(value); }

std::string flops(double value) {
  return text(view::decimal(value / 1e12, 1, view::Zeros::Drop), " TFLOP/s");
}

class FigureList {
 public:
  void add(const std::string& name, const Figure& figure,
           const std::function<std::string(double)>& words) {
    if (figure.from.empty()) return;  // not given
    list_.push_back(
        {name, words(figure.value), std::string(to_string(figure.origin)), figure.from});
  }
  void add(PageFigure figure) { list_.push_back(std::move(figure)); }
  std::vector<PageFigure> list() && { return std::move(list_); }

 private:
  std::vector<PageFigure> list_;
};

void add_transformer(const TransformerTimes& times, FigureList* list) {
  list->add("share of the peak that large products reach", times.matrix_efficiency, share);
  list->add("FLOPs that each product costs beyond its own", times.product_cost, plain);
  list->add("reads and writes of attention scores", times.score_passes, plain);
  list->add("reads and writes of other activations", times.activation_passes, plain);
  list->add("time to start a layer's kernels", times.layer_floor, format_duration);
  list->add("more of it on a split layer", times.tensor_floor, format_duration);
  list->add("share of the peak that the head reaches", times.head_efficiency, share);
  list->add("fixed time of a step", times.step_seconds, format_duration);
  list->add("bytes that the optimizer moves per parameter", times.optimizer_bytes, plain);
  list->add("range of a prediction", times.spread, share);
}

}  // namespace

std::vector<PageFigure> machine_figures(const ReportOf& report) {
  const Machine& machine = report.machine;
  FigureList list;
  list.add(
      {"steps and their parts", "the tables above", "simulated", report.model.sources(machine)});
  list.add(
      {"bytes of a device", "the tables above", "assumed", "the lines of each stage's ledger"});
  list.add("memory of a device", machine.memory, bytes);
  list.add("reserved of it", machine.reserved, bytes);
  list.add("products in 16 bits", machine.peak, flops);
  list.add("bandwidth of a device's memory", machine.memory_bandwidth, per_second);
  list.add("link within a node", machine.inside.bandwidth, per_second);
  list.add("its latency", machine.inside.latency, format_duration);
  list.add("link between nodes, all devices of a node together", machine.between.bandwidth,
           per_second);
  list.add("its latency", machine.between.latency, format_duration);
  for (const CollectiveTable& table : machine.all_reduce)
    list.add({text("all-reduce of ", table.ranks, " ranks"), text(table.bytes.size(), " sizes"),
              std::string(to_string(table.origin)), table.from});
  add_transformer(machine.transformer, &list);
  for (const KnownBlock& block : machine.blocks)
    list.add({text("a block of hidden ", block.hidden, ", micro-batch ", block.micro_batch,
                   ", tensor ", block.tensor),
              format_duration(block.seconds), std::string(to_string(block.origin)), block.from});
  if (machine.price_per_hour) list.add("price of a device's hour", *machine.price_per_hour, plain);
  return std::move(list).list();
}

}  // namespace trestle::plan
