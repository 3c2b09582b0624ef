#include "trestle/plan/machine/calibration_file.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <sstream>
#include <type_traits>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/text.h"

namespace trestle::plan {
namespace {

constexpr double longest_time = 1e6;

const std::vector<std::string>& calibration_sections() {
  static const std::vector<std::string> names = {"measured_on", "optimizer", "fixed",
                                                 "product",     "message",   "copy"};
  return names;
}

const std::vector<std::string>& measured_keys() {
  static const std::vector<std::string> names = {"date",    "cpu",      "cores",   "memory", "gpu",
                                                 "trestle", "libtorch", "devices", "tables"};
  return names;
}

const std::vector<std::string>& optimizers_in_files() {
  static const std::vector<std::string> names = {"sgd", "sgd_momentum", "adam", "adamw", "rmsprop"};
  return names;
}

std::size_t tables_of(const Machine& machine) {
  return machine.products.size() + machine.messages.size() + machine.copies.size();
}

// "2026-01-31" of a TOML date.
std::string date_words(const toml::date& date) {
  const auto digits = [](int number, std::size_t width) {
    const std::string words = text(number);
    return std::string(width - std::min(width, words.size()), '0') + words;
  };
  return text(digits(date.year, 4), "-", digits(date.month, 2), "-", digits(date.day, 2));
}

class CalibrationReader {
 public:
  CalibrationReader(Machine& machine, TomlProblems& problems)
      : machine_(machine), problems_(problems) {}

  void read_measured_on(const toml::table& table) {
    const std::string where = "[measured_on]";
    refuse_unknown(table, measured_keys(), where);
    MeasuredOn& on = machine_.measured_on.emplace();
    const toml::node* date = table.get("date");
    if (date == nullptr || !date->is_date())
      problems_.add(date == nullptr ? table.source() : date->source(),
                    text("'date' in ", where, " must be a day, for example 2026-01-31"));
    else
      on.date = date_words(date->as_date()->get());
    on.cpu = problems_.words(table, "cpu", where);
    on.cores = static_cast<int>(problems_.whole_number(table, "cores", 1, 1 << 20, where));
    on.memory = static_cast<double>(
        problems_.whole_number(table, "memory", 1, std::int64_t{1} << 60, where));
    if (const toml::node* gpu = table.get("gpu"); gpu != nullptr)
      on.gpu = problems_.words(table, "gpu", where);
    on.trestle = problems_.words(table, "trestle", where);
    on.libtorch = problems_.words(table, "libtorch", where);
    on.devices = problems_.words(table, "devices", where);
  }

  void read_optimizers(const toml::table& table) {
    refuse_unknown(table, optimizers_in_files(), "[optimizer]");
    for (const std::string& name : optimizers_in_files())
      if (const auto figure = read_figure(table, name, "[optimizer]", smallest_number))
        machine_.optimizers.push_back({name, *figure});
  }

  void read_fixed(const toml::table& table) {
    const std::string where = "[fixed]";
    refuse_unknown(table, {"kernel_start", "process_memory", "context_memory"}, where);
    machine_.fixed.kernel_start = read_figure(table, "kernel_start", where, smallest_number);
    machine_.fixed.process_memory = read_figure(table, "process_memory", where, 0, Unit::Bytes);
    machine_.fixed.context_memory = read_figure(table, "context_memory", where, 0, Unit::Bytes);
  }

  void read_product(const toml::table& table) {
    const std::string where = "[[product]]";
    const std::size_t before = problems_.count();
    ProductTable read;
    problems_.read_origin(table, where, {"shape", "type", "rows", "seconds", "spread"},
                          &read.origin, &read.from);
    const auto shape = problems_.word(table, "shape", {"square", "tall", "thin"}, where);
    const auto type = problems_.word(table, "type", types(), where);
    read_times(table, "rows", where, &read);
    if (problems_.count() != before) return;
    read.shape = static_cast<ProductShape>(*shape);
    read.type = types()[*type];
    if (!std::any_of(machine_.products.begin(), machine_.products.end(), [&](const auto& other) {
          return other.shape == read.shape && other.type == read.type;
        }))
      machine_.products.push_back(std::move(read));
    else
      problems_.add(table.source(), text("two tables ", where, " have this shape and type"));
  }

  void read_message(const toml::table& table) {
    const std::string where = "[[message]]";
    const std::size_t before = problems_.count();
    MessageTable read;
    problems_.read_origin(table, where,
                          {"kind", "over", "reach", "ranks", "bytes", "seconds", "spread"},
                          &read.origin, &read.from);
    const auto kind = problems_.word(table, "kind",
                                     {"all_reduce", "all_gather", "reduce_scatter", "send"}, where);
    const auto over = problems_.word(table, "over", transports(), where);
    const auto reach = problems_.word(table, "reach", {"inside", "between"}, where);
    read.ranks = static_cast<int>(problems_.whole_number(table, "ranks", 2, 4096, where));
    read_times(table, "bytes", where, &read);
    if (problems_.count() != before) return;
    read.kind = static_cast<Exchange>(*kind);
    read.over = transports()[*over];
    read.reach = static_cast<Reach>(*reach);
    if (!std::any_of(machine_.messages.begin(), machine_.messages.end(), [&](const auto& other) {
          return other.kind == read.kind && other.over == read.over && other.reach == read.reach &&
                 other.ranks == read.ranks;
        }))
      machine_.messages.push_back(std::move(read));
    else
      problems_.add(table.source(),
                    text("two tables ", where, " have this kind, over, reach and ranks"));
  }

  void read_copy(const toml::table& table) {
    const std::string where = "[[copy]]";
    const std::size_t before = problems_.count();
    CopyTable read;
    problems_.read_origin(table, where, {"path", "bytes", "seconds", "spread"}, &read.origin,
                          &read.from);
    const auto path = problems_.word(
        table, "path", {"on_device", "between_devices", "to_host", "from_host"}, where);
    read_times(table, "bytes", where, &read);
    if (problems_.count() != before) return;
    read.path = static_cast<CopyPath>(*path);
    for (const CopyTable& other : machine_.copies)
      if (other.path == read.path)
        return problems_.add(table.source(), text("two tables ", where, " have this path"));
    machine_.copies.push_back(std::move(read));
  }

  void read_tables(const std::string& section, const toml::node& node,
                   void (CalibrationReader::*read)(const toml::table&)) {
    const toml::array* tables = node.as_array();
    if (tables == nullptr || !tables->is_array_of_tables())
      return problems_.add(node.source(),
                           text("'", section, "' must be tables: write [[", section, "]]"));
    for (const toml::node& item : *tables) (this->*read)(*item.as_table());
  }

 private:
  static const std::vector<std::string>& types() {
    static const std::vector<std::string> names = {"fp32", "bf16", "int8"};
    return names;
  }
  static const std::vector<std::string>& transports() {
    static const std::vector<std::string> names = {"threads", "gloo", "nccl"};
    return names;
  }

  void refuse_unknown(const toml::table& table, const std::vector<std::string>& keys,
                      const std::string& where) {
    for (const auto& [name, node] : table) {
      const std::string key(name.str());
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        problems_.add(name.source(),
                      text("unknown key '", key, "' in ", where, did_you_mean(key, keys)));
    }
  }

  std::optional<Figure> read_figure(const toml::table& table, const std::string& key,
                                    const std::string& section, double least,
                                    Unit unit = Unit::Number) {
    const toml::node* node = table.get(key);
    if (node == nullptr) return std::nullopt;
    return problems_.read_figure(*node, text("'", key, "' in ", section), least, largest_number,
                                 unit);
  }

  template <class Table>
  std::vector<double>& sizes_of(Table& table) {
    if constexpr (std::is_same_v<Table, ProductTable>)
      return table.sizes;
    else
      return table.bytes;
  }

  // Sizes, and a time and a spread for each.
  template <class Table>
  void read_times(const toml::table& table, const char* sizes, const std::string& where,
                  Table* read) {
    const std::size_t before = problems_.count();
    std::vector<double>& all = sizes_of(*read);
    all = problems_.numbers(table, sizes, where, 1);
    read->seconds = problems_.numbers(table, "seconds", where, smallest_number);
    read->spread = problems_.numbers(table, "spread", where, 0);
    if (problems_.count() != before) return;
    if (all.size() != read->seconds.size() || all.size() != read->spread.size())
      return problems_.add(
          table.source(),
          text(where, " has ", all.size(), " sizes in '", sizes, "', ", read->seconds.size(),
               " times in 'seconds' and ", read->spread.size(), " in 'spread'"));
    if (std::adjacent_find(all.begin(), all.end(), std::greater_equal<>()) != all.end())
      problems_.add(table.source(), text("'", sizes, "' in ", where, " must rise"));
    if (*std::max_element(read->seconds.begin(), read->seconds.end()) > longest_time)
      problems_.add(table.source(),
                    text("a time in ", where, " is longer than ", longest_time, " s"));
  }

  Machine& machine_;
  TomlProblems& problems_;
};

template <class Table>
void write_times(std::ostringstream& out, const Table& table, const char* sizes,
                 const std::vector<double>& all) {
  out << "is = \"" << to_string(table.origin) << "\"\nfrom = " << quoted_toml(table.from) << "\n"
      << sizes << " = " << list_toml(all) << "\nseconds = " << list_toml(table.seconds)
      << "\nspread = " << list_toml(table.spread) << "\n";
}

}  // namespace

bool is_calibration_section(const std::string& section) {
  const auto& names = calibration_sections();
  return std::find(names.begin(), names.end(), section) != names.end();
}

void read_calibration(const std::string& section, const toml::node& node, Machine* machine,
                      TomlProblems* problems) {
  CalibrationReader reader(*machine, *problems);
  if (section == "product")
    return reader.read_tables(section, node, &CalibrationReader::read_product);
  if (section == "message")
    return reader.read_tables(section, node, &CalibrationReader::read_message);
  if (section == "copy") return reader.read_tables(section, node, &CalibrationReader::read_copy);
  const toml::table* table = node.as_table();
  if (table == nullptr)
    return problems->add(node.source(),
                         text("'", section, "' is a section: write [", section, "]"));
  if (section == "measured_on") return reader.read_measured_on(*table);
  if (section == "optimizer") return reader.read_optimizers(*table);
  reader.read_fixed(*table);
}

void check_calibration(const toml::table& root, const Machine& machine, TomlProblems* problems) {
  const toml::node* node = root.get("measured_on");
  if (node == nullptr || !node->is_table()) return;
  const std::int64_t tables =
      problems->whole_number(*node->as_table(), "tables", 0, 1'000'000, "[measured_on]");
  const auto found = static_cast<std::int64_t>(tables_of(machine));
  if (problems->count() == 0 && tables != found)
    problems->add(node->source(),
                  text("'tables' in [measured_on] is ", tables, ", but the file has ", found,
                       " tables: it was cut off, or changed by hand"));
}

std::string measured_on_toml(const Machine& machine) {
  std::ostringstream out;
  if (!machine.measured_on) return {};
  const MeasuredOn& on = *machine.measured_on;
  out << "\n[measured_on]\ndate = " << on.date << "\ncpu = " << quoted_toml(on.cpu)
      << "\ncores = " << on.cores << "\nmemory = " << static_cast<std::int64_t>(on.memory) << "\n";
  if (!on.gpu.empty()) out << "gpu = " << quoted_toml(on.gpu) << "\n";
  out << "trestle = " << quoted_toml(on.trestle) << "\nlibtorch = " << quoted_toml(on.libtorch)
      << "\ndevices = " << quoted_toml(on.devices) << "\ntables = " << tables_of(machine) << "\n";
  return out.str();
}

std::string calibration_toml(const Machine& machine) {
  std::ostringstream out;
  if (!machine.optimizers.empty()) out << "\n[optimizer]\n";
  for (const OptimizerTime& one : machine.optimizers)
    out << one.name << " = " << figure_toml(one.seconds_per_byte) << "\n";
  const FixedCosts& fixed = machine.fixed;
  if (fixed.kernel_start || fixed.process_memory || fixed.context_memory) out << "\n[fixed]\n";
  if (fixed.kernel_start) out << "kernel_start = " << figure_toml(*fixed.kernel_start) << "\n";
  if (fixed.process_memory)
    out << "process_memory = " << figure_toml(*fixed.process_memory) << "\n";
  if (fixed.context_memory)
    out << "context_memory = " << figure_toml(*fixed.context_memory) << "\n";
  for (const ProductTable& table : machine.products) {
    out << "\n[[product]]\nshape = \"" << to_string(table.shape) << "\"\ntype = \"" << table.type
        << "\"\n";
    write_times(out, table, "rows", table.sizes);
  }
  for (const MessageTable& table : machine.messages) {
    out << "\n[[message]]\nkind = \"" << to_string(table.kind) << "\"\nover = \"" << table.over
        << "\"\nreach = \"" << (table.reach == Reach::Inside ? "inside" : "between")
        << "\"\nranks = " << table.ranks << "\n";
    write_times(out, table, "bytes", table.bytes);
  }
  for (const CopyTable& table : machine.copies) {
    out << "\n[[copy]]\npath = \"" << to_string(table.path) << "\"\n";
    write_times(out, table, "bytes", table.bytes);
  }
  return out.str();
}

}  // namespace trestle::plan
