#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/installed.h"
#include "trestle/base/text.h"
#include "trestle/base/toml_parser.h"
#include "trestle/base/units.h"
#include "trestle/plan/machine/calibration_file.h"
#include "trestle/plan/machine/machine.h"
#include "trestle/plan/machine/toml_problems.h"

namespace trestle::plan {
namespace {

// A figure of the file: its section and key, its place in a Machine and its range.
struct MachineField {
  std::string section, key;
  Figure& (*of)(Machine&);
  double least, most;
  Unit unit = Unit::Number;
  bool (*is_set)(const Machine&) = nullptr;  // of a figure that a file may leave out

  std::string name() const { return section + "." + key; }
};

constexpr double huge = largest_number;

template <class T>
T& made(std::optional<T>& value) {
  return value ? *value : value.emplace();
}

// Also those of Unicode from U+0080 to U+009F, of two bytes in UTF-8.
bool has_control_character(const std::string& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto byte = static_cast<unsigned char>(words[i]);
    const auto next = static_cast<unsigned char>(i + 1 < words.size() ? words[i + 1] : ' ');
    if (byte < 0x20 || byte == 0x7f || (byte == 0xc2 && next < 0xa0)) return true;
  }
  return false;
}

bool has_host(const Machine& machine) { return machine.host.has_value(); }

const std::vector<MachineField>& machine_fields() {
  using M = Machine;
  static const std::vector<MachineField> fields = {
      {"device", "memory", [](M& m) -> Figure& { return m.memory; }, 1, 1e18, Unit::Bytes},
      {"device", "reserved", [](M& m) -> Figure& { return m.reserved; }, 0, 1e18, Unit::Bytes},
      {"device", "peak", [](M& m) -> Figure& { return m.peak; }, 1, huge},
      {"device", "peak_fp32", [](M& m) -> Figure& { return made(m.peak_fp32); }, 1, huge,
       Unit::Number, [](const M& m) { return m.peak_fp32.has_value(); }},
      {"device", "memory_bandwidth", [](M& m) -> Figure& { return m.memory_bandwidth; }, 1, huge,
       Unit::Bandwidth},
      {"transformer", "matrix_efficiency",
       [](M& m) -> Figure& { return m.transformer.matrix_efficiency; }, 1e-6, 1},
      {"transformer", "product_cost", [](M& m) -> Figure& { return m.transformer.product_cost; }, 0,
       1e18},
      {"transformer", "score_passes", [](M& m) -> Figure& { return m.transformer.score_passes; }, 0,
       1e6},
      {"transformer", "activation_passes",
       [](M& m) -> Figure& { return m.transformer.activation_passes; }, 0, 1e6},
      {"transformer", "layer_floor", [](M& m) -> Figure& { return m.transformer.layer_floor; }, 0,
       1e3},
      {"transformer", "head_efficiency",
       [](M& m) -> Figure& { return m.transformer.head_efficiency; }, 1e-6, 1},
      {"transformer", "step_seconds", [](M& m) -> Figure& { return m.transformer.step_seconds; }, 0,
       1e3},
      {"transformer", "tensor_floor", [](M& m) -> Figure& { return m.transformer.tensor_floor; }, 0,
       1e3},
      {"transformer", "spread", [](M& m) -> Figure& { return m.transformer.spread; }, 0, 1},
      {"transformer", "optimizer_bytes",
       [](M& m) -> Figure& { return m.transformer.optimizer_bytes; }, 0, 1e4},
      {"inside", "bandwidth", [](M& m) -> Figure& { return m.inside.bandwidth; }, 1, huge,
       Unit::Bandwidth},
      {"inside", "latency", [](M& m) -> Figure& { return m.inside.latency; }, 0, 1e3},
      {"between", "bandwidth", [](M& m) -> Figure& { return m.between.bandwidth; }, 1, huge,
       Unit::Bandwidth},
      {"between", "latency", [](M& m) -> Figure& { return m.between.latency; }, 0, 1e3},
      {"host", "bandwidth", [](M& m) -> Figure& { return made(m.host).bandwidth; }, 1, huge,
       Unit::Bandwidth, has_host},
      {"host", "memory_bandwidth", [](M& m) -> Figure& { return made(m.host).memory_bandwidth; }, 1,
       huge, Unit::Bandwidth, has_host},
      {"host", "memory", [](M& m) -> Figure& { return made(m.host).memory; }, 1, 1e18, Unit::Bytes,
       has_host},
      {"overlap", "tensor", [](M& m) -> Figure& { return made(m.hidden_tensor); }, 0, 1,
       Unit::Number, [](const M& m) { return m.hidden_tensor.has_value(); }},
      {"overlap", "data", [](M& m) -> Figure& { return made(m.hidden_data); }, 0, 1, Unit::Number,
       [](const M& m) { return m.hidden_data.has_value(); }},
      {"price", "per_hour", [](M& m) -> Figure& { return made(m.price_per_hour); }, 0, 1e9,
       Unit::Number, [](const M& m) { return m.price_per_hour.has_value(); }},
  };
  return fields;
}

// Reads the file and collects every problem with its line.
class MachineReader {
 public:
  MachineReader(const std::string& file, Machine& machine) : problems_(file), machine_(machine) {}

  void read(const toml::table& root) {
    read_head(root);
    for (const auto& [name, node] : root) {
      const std::string section(name.str());
      if (section == "all_reduce") {
        read_tables(node);
      } else if (section == "block") {
        read_blocks(node);
      } else if (is_calibration_section(section)) {
        read_calibration(section, node, &machine_, &problems_);
      } else if (section != "machine") {
        read_section(section, node, name.source());
      }
    }
    for (const MachineField& field : machine_fields())
      if ((field.is_set == nullptr || field.is_set(machine_)) &&
          std::find(seen_.begin(), seen_.end(), field.name()) == seen_.end())
        add({}, text("'", field.key, "' is missing in [", field.section, "]"));
    check_calibration(root, machine_, &problems_);
    if (problems_.count() == 0) check_together();
    problems_.throw_if_any();
  }

 private:
  void add(const toml::source_region& source, const std::string& what) {
    problems_.add(source, what);
  }

  void read_head(const toml::table& root) {
    const toml::node* node = root.get("machine");
    if (node == nullptr || !node->is_table())
      return add(node ? node->source() : toml::source_region{},
                 "the section [machine] is missing: it holds name, about and devices_per_node");
    for (const auto& [name, value] : *node->as_table()) {
      const std::string key(name.str());
      if (key == "name" || key == "about") {
        if (const auto* words = value.as_string())
          (key == "name" ? machine_.name : machine_.about) = words->get();
        else
          add(value.source(), text("'", key, "' in [machine] must be a text"));
      } else if (key == "devices_per_node") {
        const auto number = TomlProblems::whole_number(value, 1, 4096);
        if (number)
          machine_.devices_per_node = static_cast<int>(*number);
        else
          add(value.source(),
              "'devices_per_node' in [machine] must be a whole number from 1 to 4096");
        has_devices_ = true;
      } else {
        add(name.source(), text("unknown key '", key, "' in [machine]",
                                did_you_mean(key, {"name", "about", "devices_per_node"})));
      }
    }
    if (machine_.name.empty()) add(node->source(), "'name' is missing in [machine]");
    if (has_control_character(machine_.name))
      add(node->as_table()->get("name")->source(),
          "'name' in [machine] must have no control characters: it is printed on terminals");
    if (!has_devices_) add(node->source(), "'devices_per_node' is missing in [machine]");
  }

  void read_section(const std::string& section, const toml::node& node,
                    const toml::source_region& source) {
    std::vector<std::string> sections = {"machine", "all_reduce", "block"}, keys;
    sections.insert(sections.end(),
                    {"measured_on", "optimizer", "fixed", "product", "message", "copy"});
    for (const MachineField& field : machine_fields()) {
      sections.push_back(field.section);
      if (field.section == section) keys.push_back(field.key);
    }
    if (keys.empty())
      return add(source, text("unknown section [", section, "]", did_you_mean(section, sections)));
    if (!node.is_table())
      return add(source, text("'", section, "' is a section: write [", section, "]"));
    for (const auto& [name, value] : *node.as_table()) {
      const std::string key(name.str());
      const MachineField* found = nullptr;
      for (const MachineField& field : machine_fields())
        if (field.section == section && field.key == key) found = &field;
      if (found == nullptr) {
        add(name.source(),
            text("unknown key '", key, "' in [", section, "]", did_you_mean(key, keys)));
        continue;
      }
      seen_.push_back(found->name());
      read_figure(*found, value);
    }
  }

  void read_figure(const MachineField& field, const toml::node& node) {
    const auto figure =
        problems_.read_figure(node, text("'", field.key, "' in [", field.section, "]"), field.least,
                              field.most, field.unit);
    if (figure) field.of(machine_) = *figure;
  }

  void read_tables(const toml::node& node) {
    const toml::array* tables = node.as_array();
    if (tables == nullptr || !tables->is_array_of_tables())
      return add(node.source(), "'all_reduce' must be tables: write [[all_reduce]]");
    for (const toml::node& item : *tables) read_table(*item.as_table());
    auto& all = machine_.all_reduce;
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a.ranks < b.ranks; });
    for (std::size_t i = 1; i < all.size(); ++i)
      if (all[i].ranks == all[i - 1].ranks)
        add(node.source(), text("two tables [[all_reduce]] have ranks = ", all[i].ranks));
  }

  void read_table(const toml::table& table) {
    const std::string where = "[[all_reduce]]";
    CollectiveTable read;
    const std::size_t before = problems_.count();
    problems_.read_origin(table, where, {"ranks", "bytes", "seconds"}, &read.origin, &read.from);
    read.ranks = static_cast<int>(problems_.whole_number(table, "ranks", 2, 4096, where));
    read.bytes = problems_.numbers(table, "bytes", where, smallest_number);
    read.seconds = problems_.numbers(table, "seconds", where, smallest_number);
    if (problems_.count() != before) return;
    const auto rises = [](const std::vector<double>& v) {
      return std::adjacent_find(v.begin(), v.end(), std::greater_equal<>()) == v.end();
    };
    if (read.bytes.size() != read.seconds.size())
      add(table.source(), text(where, " has ", read.bytes.size(), " sizes in 'bytes' and ",
                               read.seconds.size(), " times in 'seconds'"));
    else if (!rises(read.bytes))
      add(table.source(), text("'bytes' in ", where, " must rise"));
    else
      machine_.all_reduce.push_back(std::move(read));
  }

  void read_blocks(const toml::node& node) {
    const toml::array* blocks = node.as_array();
    if (blocks == nullptr || !blocks->is_array_of_tables())
      return add(node.source(), "'block' must be tables: write [[block]]");
    for (const toml::node& item : *blocks) read_block(*item.as_table());
  }

  void read_block(const toml::table& table) {
    const std::string where = "[[block]]";
    KnownBlock block;
    const std::size_t before = problems_.count();
    problems_.read_origin(table, where,
                          {"hidden", "heads", "sequence", "micro_batch", "tensor", "seconds"},
                          &block.origin, &block.from);
    const auto size = [&](const char* key) {
      return problems_.whole_number(table, key, 1, 100'000'000, where);
    };
    block.hidden = size("hidden");
    block.heads = size("heads");
    block.sequence = size("sequence");
    block.micro_batch = static_cast<int>(size("micro_batch"));
    block.tensor = static_cast<int>(size("tensor"));
    const toml::node* seconds = table.get("seconds");
    const auto* number = seconds == nullptr ? nullptr : seconds->as_floating_point();
    if (number == nullptr || !(number->get() >= smallest_number && number->get() <= 1e6))
      add(seconds == nullptr ? table.source() : seconds->source(),
          text("'seconds' in ", where, " must be a number above 0, with a decimal point"));
    else
      block.seconds = number->get();
    if (problems_.count() == before) machine_.blocks.push_back(std::move(block));
  }

  void check_together() {
    if (machine_.reserved.value >= machine_.memory.value)
      add({}, text("'reserved' in [device] leaves nothing of 'memory': ", machine_.reserved.value,
                   " of ", machine_.memory.value, " bytes"));
  }

  TomlProblems problems_;
  Machine& machine_;
  bool has_devices_ = false;
  std::vector<std::string> seen_;
};

bool is_profile_name(const std::filesystem::path& path) {
  return !path.has_parent_path() && path.extension() != ".toml";
}

}  // namespace

Machine parse_machine(std::string_view toml_text, const std::string& file) {
  Machine machine;
  toml::table root;
  try {
    root = toml::parse(toml_text, std::string_view(file));
  } catch (const toml::parse_error& error) {
    throw UsageError(text(toml_place(file, error.source()), ": ", error.description()));
  } catch (const std::invalid_argument& error) {
    throw UsageError(text(file, ": ", error.what()));
  }
  MachineReader(file, machine).read(root);
  return machine;
}

std::string to_toml(const Machine& machine) {
  Machine copy = machine;
  std::ostringstream out;
  out << "[machine]\nname = " << quoted_toml(machine.name)
      << "\nabout = " << quoted_toml(machine.about)
      << "\ndevices_per_node = " << machine.devices_per_node << "\n"
      << measured_on_toml(machine);
  std::string section;
  const auto write = [&](const MachineField& field) {
    if (field.section != section) out << "\n[" << field.section << "]\n";
    section = field.section;
    out << field.key << " = " << figure_toml(field.of(copy)) << "\n";
  };
  for (const MachineField& field : machine_fields())
    if (field.is_set == nullptr || field.is_set(machine)) write(field);
  for (const CollectiveTable& table : machine.all_reduce)
    out << "\n[[all_reduce]]\nranks = " << table.ranks << "\nis = \"" << to_string(table.origin)
        << "\"\nfrom = " << quoted_toml(table.from) << "\nbytes = " << list_toml(table.bytes)
        << "\nseconds = " << list_toml(table.seconds) << "\n";
  for (const KnownBlock& block : machine.blocks)
    out << "\n[[block]]\nhidden = " << block.hidden << "\nheads = " << block.heads
        << "\nsequence = " << block.sequence << "\nmicro_batch = " << block.micro_batch
        << "\ntensor = " << block.tensor << "\nseconds = " << number_toml(block.seconds)
        << "\nis = \"" << to_string(block.origin) << "\"\nfrom = " << quoted_toml(block.from)
        << "\n";
  out << calibration_toml(machine);
  return out.str();
}

std::vector<std::filesystem::path> machine_folders() {
  return folders_of_installed("machines", TRESTLE_MACHINES);
}

Machine read_machine(const std::filesystem::path& name) {
  std::filesystem::path path = name;
  if (!std::filesystem::is_regular_file(path) && is_profile_name(name))
    for (const std::filesystem::path& folder : machine_folders())
      if (const auto known = folder / (name.string() + ".toml"); std::filesystem::exists(known)) {
        path = known;
        break;
      }
  if (!std::filesystem::is_regular_file(path)) {
    std::vector<std::string> places;
    std::error_code none;
    for (const std::filesystem::path& folder : machine_folders())
      places.push_back(std::filesystem::absolute(folder, none).lexically_normal().string());
    throw UsageError(is_profile_name(name)
                         ? text(name.string(), ": no such machine: there is no ", name.string(),
                                ".toml in ", join(places, ", nor in "))
                         : text(name.string(), ": no such file"),
                     {.hint = "Name a profile, for example a100-8-per-node, or a TOML file."});
  }
  return parse_machine(read_text_file(path), path.string());
}

}  // namespace trestle::plan
