#include "trestle/cli/calibration_output.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/view/time_axis.h"

namespace trestle::cli {

namespace {

using nlohmann::ordered_json;

constexpr int indent = 11;

std::string line(std::string name, const std::string& words, int columns) {
  name.resize(indent, ' ');
  return wrapped(name + words, columns, indent) + "\n";
}

std::string share(double spread) { return text(view::decimal(100 * spread, 0), " %"); }

// "48.2 GFLOP/s".
std::string rate_words(double rate) {
  constexpr double giga = 1e9, tera = 1e12;
  return rate >= tera ? text(view::decimal(rate / tera, 1), " TFLOP/s")
                      : text(view::decimal(rate / giga, 1), " GFLOP/s");
}

// "fp32: square 48.2 GFLOP/s (1024 rows), tall ...".
std::string words_of_products(const plan::Machine& machine, const std::string& type) {
  std::vector<std::string> shapes;
  for (const plan::ProductTable& table : machine.products) {
    if (table.type != type) continue;
    double best = 0, rows = 0;
    for (std::size_t i = 0; i < table.sizes.size(); ++i) {
      const double rate = plan::flops_of_product(table.shape, table.sizes[i]) / table.seconds[i];
      if (rate > best) best = rate, rows = table.sizes[i];
    }
    shapes.push_back(text(to_string(table.shape), " ", rate_words(best), " (", rows, " rows)"));
  }
  return shapes.empty() ? std::string() : text(type, ": ", join(shapes, ", "));
}

std::string messages_title(const plan::MessageTable& table) {
  return text("  ", table.over, " ", table.ranks,
              table.reach == plan::Reach::Between ? " hosts" : "", " ", to_string(table.kind));
}

std::string table_of_messages(const plan::Machine& machine) {
  if (machine.messages.empty()) return {};
  std::ostringstream out;
  constexpr int name = 34, cell = 14;
  const auto size = [](double bytes) { return format_bytes(static_cast<Bytes>(bytes)); };
  const plan::MessageTable& first = machine.messages.front();
  out << std::left << std::setw(name) << "messages" << std::right << std::setw(cell)
      << size(first.bytes.front()) << std::setw(cell) << size(first.bytes.back()) << "  spread\n";
  for (const plan::MessageTable& table : machine.messages)
    out << std::left << std::setw(name) << messages_title(table) << std::right << std::setw(cell)
        << format_duration(table.seconds.front()) << std::setw(cell)
        << format_duration(table.seconds.back()) << std::setw(8) << share(table.spread.back())
        << "\n";
  return out.str();
}

ordered_json figure_json(const plan::Figure& figure) {
  return {{"value", figure.value},
          {"is", to_string(figure.origin)},
          {"spread", figure.spread},
          {"from", figure.from}};
}

ordered_json figures_json(const plan::Machine& machine) {
  const plan::TransformerTimes& times = machine.transformer;
  return {{"memory", figure_json(machine.memory)},
          {"reserved", figure_json(machine.reserved)},
          {"peak", figure_json(machine.peak)},
          {"memory_bandwidth", figure_json(machine.memory_bandwidth)},
          {"matrix_efficiency", figure_json(times.matrix_efficiency)},
          {"product_cost", figure_json(times.product_cost)},
          {"score_passes", figure_json(times.score_passes)},
          {"activation_passes", figure_json(times.activation_passes)},
          {"layer_floor", figure_json(times.layer_floor)},
          {"head_efficiency", figure_json(times.head_efficiency)},
          {"step_seconds", figure_json(times.step_seconds)},
          {"tensor_floor", figure_json(times.tensor_floor)},
          {"spread", figure_json(times.spread)},
          {"optimizer_bytes", figure_json(times.optimizer_bytes)},
          {"inside_bandwidth", figure_json(machine.inside.bandwidth)},
          {"inside_latency", figure_json(machine.inside.latency)},
          {"between_bandwidth", figure_json(machine.between.bandwidth)},
          {"between_latency", figure_json(machine.between.latency)}};
}

}  // namespace

std::string calibration_words(const train::Calibration& measured, int columns) {
  const plan::Machine& machine = measured.machine;
  std::ostringstream out;
  out << line("machine", machine.about, columns);
  if (machine.measured_on) out << line("devices", machine.measured_on->devices, columns);
  for (const std::string type : {"fp32", "bf16", "int8"})
    if (const std::string words = words_of_products(machine, type); !words.empty())
      out << line("products", words, columns);
  out << line("memory",
              text(view::decimal(machine.memory_bandwidth.value / 1e9, 1), " GB/s, spread ",
                   share(machine.memory_bandwidth.spread), " · a process ",
                   format_bytes(static_cast<Bytes>(machine.reserved.value))),
              columns);
  if (machine.fixed.kernel_start)
    out << line(
        "kernel",
        text("starts in ", view::decimal(machine.fixed.kernel_start->value * 1e6, 2), " us"),
        columns);
  std::vector<std::string> steps;
  for (const plan::OptimizerTime& one : machine.optimizers)
    steps.push_back(text(one.name, " ", view::decimal(one.seconds_per_byte.value * 1e9, 2)));
  out << line("optimizer", text(join(steps, ", "), " ns per byte of parameters"), columns);
  out << line("formula",
              text("of a transformer's block: within ", share(machine.transformer.spread.value),
                   " of the blocks that were measured"),
              columns);
  for (const std::string& note : measured.notes) out << line("note", note, columns);
  return out.str() + table_of_messages(machine);
}

std::string calibration_json(const train::Calibration& measured, const std::string& file) {
  const plan::Machine& machine = measured.machine;
  ordered_json json;
  json["file"] = file;
  json["seconds"] = measured.seconds;
  if (machine.measured_on) {
    const plan::MeasuredOn& on = *machine.measured_on;
    json["measured_on"] = {{"date", on.date},         {"cpu", on.cpu},
                           {"cores", on.cores},       {"memory_bytes", on.memory},
                           {"gpu", on.gpu},           {"trestle", on.trestle},
                           {"libtorch", on.libtorch}, {"devices", on.devices}};
  }
  json["devices_per_node"] = machine.devices_per_node;
  json["figures"] = figures_json(machine);
  for (const plan::OptimizerTime& one : machine.optimizers)
    json["optimizers"][one.name] = figure_json(one.seconds_per_byte);
  json["products"] = json["messages"] = json["copies"] = ordered_json::array();
  for (const plan::ProductTable& table : machine.products)
    json["products"].push_back({{"shape", to_string(table.shape)},
                                {"type", table.type},
                                {"rows", table.sizes},
                                {"seconds", table.seconds},
                                {"spread", table.spread}});
  for (const plan::MessageTable& table : machine.messages)
    json["messages"].push_back(
        {{"kind", to_string(table.kind)},
         {"over", table.over},
         {"reach", table.reach == plan::Reach::Inside ? "inside" : "between"},
         {"ranks", table.ranks},
         {"bytes", table.bytes},
         {"seconds", table.seconds},
         {"spread", table.spread}});
  for (const plan::CopyTable& table : machine.copies)
    json["copies"].push_back({{"path", to_string(table.path)},
                              {"bytes", table.bytes},
                              {"seconds", table.seconds},
                              {"spread", table.spread}});
  json["notes"] = measured.notes;
  return json.dump();
}

}  // namespace trestle::cli
