#include "trestle/train/calibrate/derived_figures.h"

#include <algorithm>
#include <cmath>

#include "trestle/base/text.h"
#include "trestle/plan/gpt/layer_times.h"

namespace trestle::train {

namespace {

using plan::Figure;
using plan::Origin;
using plan::ProductShape;

const plan::ProductTable* table_of(const plan::Machine& machine, ProductShape shape,
                                   const std::string& type) {
  for (const plan::ProductTable& table : machine.products)
    if (table.shape == shape && table.type == type) return &table;
  return nullptr;
}

// The most FLOP/s of a type; 0 without a table.
double fastest_rate(const plan::Machine& machine, const std::string& type) {
  double fastest = 0;
  for (const plan::ProductTable& table : machine.products)
    for (std::size_t i = 0; table.type == type && i < table.sizes.size(); ++i)
      fastest =
          std::max(fastest, plan::flops_of_product(table.shape, table.sizes[i]) / table.seconds[i]);
  return fastest;
}

// seconds = (flops + fixed) / rate.
struct ProductLine {
  double rate = 1, fixed = 0;
  double spread = 0;  // the worst deviation of a measured product
};

// Least squares of the relative errors over the square and tall products.
ProductLine fit_products(const plan::Machine& machine, const std::string& type, double peak) {
  double ff = 0, f1 = 0, one = 0, f = 0, c = 0;
  std::vector<std::pair<double, double>> points;
  for (const ProductShape shape : {ProductShape::Square, ProductShape::Tall}) {
    const plan::ProductTable* table = table_of(machine, shape, type);
    for (std::size_t i = 0; table != nullptr && i < table->sizes.size(); ++i)
      points.emplace_back(plan::flops_of_product(shape, table->sizes[i]), table->seconds[i]);
  }
  for (const auto& [flops, seconds] : points) {
    const double x = flops / seconds, y = 1 / seconds;
    ff += x * x, f1 += x * y, one += y * y, f += x, c += y;
  }
  ProductLine line{.rate = peak};
  if (points.empty()) return line;
  const double determinant = ff * one - f1 * f1;
  double slope = f / ff, start = 0;
  if (points.size() > 1 && determinant > 1e-12 * ff * one) {
    const double with_start = (f * one - c * f1) / determinant;
    const double fitted = (c * ff - f * f1) / determinant;
    if (fitted > 0 && with_start > 0) slope = with_start, start = fitted;
  }
  // No product is faster than the peak.
  slope = std::max(slope, 1 / peak);
  line = {.rate = 1 / slope, .fixed = start / slope};
  for (const auto& [flops, seconds] : points)
    line.spread = std::max(line.spread, std::abs((flops * slope + start) / seconds - 1));
  return line;
}

double within(double value, double least, double most) { return std::clamp(value, least, most); }

Figure measured_figure(double value, double spread, const std::string& from) {
  return {.value = value, .origin = Origin::Measured, .from = from, .spread = spread};
}

double numbers_of_scores(const BlockSizes& n) {
  return static_cast<double>(n.batch * n.heads * n.tokens * n.tokens);
}

double numbers_of_states(const BlockSizes& n) {
  return static_cast<double>(n.batch * n.tokens * n.hidden);
}

std::string words_of_sizes(const BlockSizes& n) {
  return text(n.batch, " x ", n.tokens, " tokens, hidden ", n.hidden);
}

// The worst deviation of the formula from a whole block.
double worst_block(const BlockCosts& block, const plan::Machine& machine) {
  double worst = 0;
  for (const auto& [sizes, timed] : block.blocks) {
    const plan::GptModel model{.layers = 1,
                               .hidden = sizes.hidden,
                               .heads = sizes.heads,
                               .sequence = sizes.tokens,
                               .vocabulary = 1};
    const double formula =
        plan::block_compute(model, {.micro_batch = static_cast<double>(sizes.batch)}, machine);
    worst = std::max(worst, std::abs(formula / timed.seconds - 1));
  }
  return worst;
}

const plan::MessageTable* messages_of(const plan::Machine& machine, const std::string& over,
                                      plan::Reach reach) {
  for (const plan::MessageTable& table : machine.messages)
    if (table.kind == plan::Exchange::Send && table.over == over && table.reach == reach)
      return &table;
  return nullptr;
}

plan::LinkFigures link_of_table(const plan::MessageTable& table) {
  const double first = table.seconds.front(), last = table.seconds.back();
  const double rising = last > first ? last - first : last;
  const double spread = *std::max_element(table.spread.begin(), table.spread.end());
  return {.bandwidth = measured_figure(
              (table.bytes.back() - (last > first ? table.bytes.front() : 0)) / rising, spread,
              text("messages over ", table.over, ", from the smallest to the largest size")),
          .latency = measured_figure(first, table.spread.front(),
                                     text("the smallest message over ", table.over))};
}

}  // namespace

std::string fastest_type(const plan::Machine& machine) {
  return fastest_rate(machine, "bf16") > fastest_rate(machine, "fp32") ? "bf16" : "fp32";
}

void derive_transformer(const BlockCosts& block, const std::string& type,
                        const plan::Figure& optimizer_start, plan::Machine* machine) {
  const double peak = fastest_rate(*machine, type);
  machine->peak = measured_figure(peak, 0, text("the fastest measured product, in ", type));
  if (const double fp32 = fastest_rate(*machine, "fp32"); fp32 > 0)
    machine->peak_fp32 = measured_figure(fp32, 0, "the fastest measured product, in fp32");
  const ProductLine line = fit_products(*machine, type, peak);
  const double bandwidth = machine->memory_bandwidth.value;
  plan::TransformerTimes& times = machine->transformer;
  const std::string fit = text(
      "(FLOPs + product_cost) / rate, fitted to the square and tall "
      "products in ",
      type);
  times.matrix_efficiency = measured_figure(within(line.rate / peak, 1e-6, 1), line.spread, fit);
  times.product_cost = measured_figure(within(line.fixed, 0, 1e18), line.spread, fit);
  times.score_passes = measured_figure(
      within(block.scores.seconds * bandwidth / (2 * numbers_of_scores(block.scores_of)), 0, 1e6),
      block.scores.spread,
      text("softmax, mask and dropout of the scores of ", words_of_sizes(block.scores_of),
           ", forward and backward, over memory_bandwidth"));
  constexpr double bytes_of_token = 34;  // of plan/gpt/layer_times.h without tensor ranks
  times.activation_passes = measured_figure(
      within(block.activations.seconds * bandwidth /
                 (bytes_of_token * numbers_of_states(block.activations_of)),
             0, 1e6),
      block.activations.spread,
      text("norms, biases, GELU, dropouts and sums of ", words_of_sizes(block.activations_of),
           ", forward and backward, over memory_bandwidth"));
  times.layer_floor = measured_figure(within(block.floor.seconds, 0, 1e3), block.floor.spread,
                                      "a block of 64 numbers, forward and backward");
  const double head_flops =
      6 * numbers_of_states(block.head_of) * static_cast<double>(block.vocabulary);
  times.head_efficiency =
      measured_figure(within(head_flops / block.head.seconds / peak, 1e-6, 1), block.head.spread,
                      text("the head and the loss of ", words_of_sizes(block.head_of),
                           ", vocabulary ", block.vocabulary, ", forward and backward"));
  times.step_seconds = measured_figure(within(optimizer_start.value, 0, 1e3),
                                       optimizer_start.spread, optimizer_start.from);
  times.tensor_floor = {.value = 0,
                        .origin = Origin::Assumed,
                        .from = "the measured all-reduces include the start of their messages"};
  times.optimizer_bytes = {
      .value = 20, .origin = Origin::Assumed, .from = "Adam with fp32 weights"};
  for (const plan::OptimizerTime& one : machine->optimizers)
    if (one.name == "adamw")
      times.optimizer_bytes = measured_figure(
          within(one.seconds_per_byte.value * sizeof(float) * bandwidth, 0, 1e4),
          one.seconds_per_byte.spread, "steps of AdamW in fp32, over memory_bandwidth");
  std::size_t blocks = block.blocks.size();
  times.spread = measured_figure(within(worst_block(block, *machine), 0, 1), 0,
                                 text("the worst deviation of the formula from ", blocks,
                                      " whole blocks on this machine; no step was compared"));
}

std::string counted_transport(const plan::Machine& machine) {
  for (const std::string transport : {"nccl", "gloo", "threads"})
    for (const plan::MessageTable& table : machine.messages)
      if (table.over == transport && table.reach == plan::Reach::Inside) return transport;
  return {};
}

void derive_links(const std::string& transport, plan::Machine* machine) {
  const plan::MessageTable* inside = messages_of(*machine, transport, plan::Reach::Inside);
  const plan::MessageTable* between = nullptr;
  for (const std::string over : {"nccl", "gloo"})
    if (between == nullptr) between = messages_of(*machine, over, plan::Reach::Between);
  if (inside != nullptr) {
    machine->inside = link_of_table(*inside);
  } else {
    const std::string why = "assumed: no two ranks of this machine exchanged messages; ";
    const plan::CopyTable* through_host = nullptr;
    for (const plan::CopyTable& copy : machine->copies)
      if (copy.path == plan::CopyPath::ToHost || copy.path == plan::CopyPath::OnDevice)
        if (through_host == nullptr || copy.path == plan::CopyPath::ToHost) through_host = &copy;
    constexpr double without_copies = 10e9;
    machine->inside = {
        .bandwidth = {.value = through_host == nullptr
                                   ? without_copies
                                   : through_host->bytes.back() / through_host->seconds.back() / 2,
                      .from = why + "half the rate of a copy, twice through the host"},
        .latency = {.value = 1e-5, .from = why + "10 us"}};
  }
  if (between != nullptr) {
    machine->between = link_of_table(*between);
  } else {
    constexpr double ten_gigabits = 1.25e9, fifty_microseconds = 5e-5;
    const std::string why = "assumed: no second host took part; ";
    machine->between = {.bandwidth = {.value = ten_gigabits, .from = why + "10 Gbit/s Ethernet"},
                        .latency = {.value = fifty_microseconds, .from = why + "50 us"}};
  }
  machine->all_reduce.clear();
  for (const plan::MessageTable& table : machine->messages)
    if (table.kind == plan::Exchange::AllReduce && table.over == transport &&
        table.reach == plan::Reach::Inside)
      machine->all_reduce.push_back({.ranks = table.ranks,
                                     .origin = table.origin,
                                     .from = text("the [[message]] table over ", table.over),
                                     .bytes = table.bytes,
                                     .seconds = table.seconds});
  std::sort(machine->all_reduce.begin(), machine->all_reduce.end(),
            [](const auto& a, const auto& b) { return a.ranks < b.ranks; });
}

}  // namespace trestle::train
