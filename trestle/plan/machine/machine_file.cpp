#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iomanip>
#include <limits>
#include <sstream>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/installed.h"
#include "trestle/base/text.h"
#include "trestle/base/toml_parser.h"
#include "trestle/base/units.h"
#include "trestle/plan/machine/machine.h"

namespace trestle::plan {
namespace {

enum class Unit { Number, Bytes, Bandwidth };

// A figure of the file: its section and key, its place in a Machine and its range.
struct MachineField {
  std::string section, key;
  Figure& (*of)(Machine&);
  double least, most;
  Unit unit = Unit::Number;
  bool (*is_set)(const Machine&) = nullptr;  // of a figure that a file may leave out

  std::string name() const { return section + "." + key; }
};

constexpr double tiny = 1e-12;
constexpr double huge = 1e30;

template <class T>
T& made(std::optional<T>& value) {
  return value ? *value : value.emplace();
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

const std::vector<std::string>& origin_names() {
  static const std::vector<std::string> names = {"measured", "simulated", "assumed"};
  return names;
}

// Reads the file and collects every problem with its line.
class MachineReader {
 public:
  MachineReader(const std::string& file, Machine& machine) : file_(file), machine_(machine) {}

  void read(const toml::table& root) {
    read_head(root);
    for (const auto& [name, node] : root) {
      const std::string section(name.str());
      if (section == "all_reduce") {
        read_tables(node);
      } else if (section == "block") {
        read_blocks(node);
      } else if (section != "machine") {
        read_section(section, node, name.source());
      }
    }
    for (const MachineField& field : machine_fields())
      if ((field.is_set == nullptr || field.is_set(machine_)) &&
          std::find(seen_.begin(), seen_.end(), field.name()) == seen_.end())
        add({}, text("'", field.key, "' is missing in [", field.section, "]"));
    if (problems_.empty()) check_together();
    if (problems_.empty()) return;
    std::stable_sort(problems_.begin(), problems_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::string> lines;
    for (const auto& [line, message] : problems_) lines.push_back(message);
    throw UsageError(join(lines, "\n"));
  }

 private:
  void add(const toml::source_region& source, const std::string& what) {
    problems_.emplace_back(source.begin.line, text(toml_place(file_, source), ": ", what));
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
        const auto number = whole_number(value, 1, 4096);
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
    if (!has_devices_) add(node->source(), "'devices_per_node' is missing in [machine]");
  }

  static std::optional<std::int64_t> whole_number(const toml::node& node, std::int64_t least,
                                                  std::int64_t most) {
    const auto* number = node.as_integer();
    if (number == nullptr || number->get() < least || number->get() > most) return std::nullopt;
    return number->get();
  }

  void read_section(const std::string& section, const toml::node& node,
                    const toml::source_region& source) {
    std::vector<std::string> sections = {"machine", "all_reduce", "block"}, keys;
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

  // { value = 1.5, is = "measured", from = "..." }
  void read_figure(const MachineField& field, const toml::node& node) {
    const std::string where = text("'", field.key, "' in [", field.section, "]");
    const toml::table* table = node.as_table();
    if (table == nullptr)
      return add(node.source(), text(where,
                                     " must be { value = ..., is = \"measured\", \"simulated\""
                                     " or \"assumed\", from = \"its source\" }"));
    Figure figure;
    if (!read_origin(*table, where, {"value"}, &figure.origin, &figure.from)) return;
    const toml::node* value = table->get("value");
    if (value == nullptr) return add(node.source(), text(where, " has no 'value'"));
    const auto number = number_of(field, *value, where);
    if (!number) return;
    if (!(*number >= field.least && *number <= field.most))
      return add(value->source(), text(where, " is ", *number, ", but must lie from ", field.least,
                                       " to ", field.most));
    figure.value = *number;
    field.of(machine_) = figure;
  }

  std::optional<double> number_of(const MachineField& field, const toml::node& node,
                                  const std::string& where) {
    if (const auto* v = node.as_integer()) return static_cast<double>(v->get());
    if (const auto* v = node.as_floating_point()) return v->get();
    if (const auto* v = node.as_string(); v != nullptr && field.unit != Unit::Number) {
      try {
        return field.unit == Unit::Bytes ? static_cast<double>(parse_bytes(v->get()))
                                         : parse_bandwidth(v->get());
      } catch (const UsageError& error) {
        add(node.source(), text(where, ": ", error.what()));
        return std::nullopt;
      }
    }
    add(node.source(), text(where, " must be a number",
                            field.unit == Unit::Bytes       ? " of bytes, or \"80GB\""
                            : field.unit == Unit::Bandwidth ? " of bytes per second, or \"100GB/s\""
                                                            : ""));
    return std::nullopt;
  }

  // The keys 'is' and 'from'. Other keys than these and `more` are refused.
  bool read_origin(const toml::table& table, const std::string& where,
                   const std::vector<std::string>& more, Origin* origin, std::string* from) {
    const std::size_t before = problems_.size();
    std::vector<std::string> keys = more;
    keys.insert(keys.end(), {"is", "from"});
    for (const auto& [name, node] : table) {
      const std::string key(name.str());
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        add(name.source(), text("unknown key '", key, "' in ", where, did_you_mean(key, keys)));
    }
    const toml::node* is = table.get("is");
    const auto* word = is == nullptr ? nullptr : is->as_string();
    const auto& names = origin_names();
    const auto found =
        word == nullptr ? names.end() : std::find(names.begin(), names.end(), word->get());
    if (found == names.end())
      add(is == nullptr ? table.source() : is->source(),
          text(where, ": 'is' must be \"measured\", \"simulated\" or \"assumed\""));
    else
      *origin = static_cast<Origin>(found - names.begin());
    const toml::node* source = table.get("from");
    const auto* words = source == nullptr ? nullptr : source->as_string();
    if (words == nullptr || trim(words->get()).empty())
      add(source == nullptr ? table.source() : source->source(),
          text(where, ": 'from' must name the figure's source"));
    else
      *from = words->get();
    return problems_.size() == before;
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
    const std::size_t before = problems_.size();
    read_origin(table, where, {"ranks", "bytes", "seconds"}, &read.origin, &read.from);
    const toml::node* ranks = table.get("ranks");
    const auto number = ranks == nullptr ? std::nullopt : whole_number(*ranks, 2, 4096);
    if (number)
      read.ranks = static_cast<int>(*number);
    else
      add(ranks == nullptr ? table.source() : ranks->source(),
          text("'ranks' in ", where, " must be a whole number from 2 to 4096"));
    read.bytes = numbers(table, "bytes", where);
    read.seconds = numbers(table, "seconds", where);
    if (problems_.size() != before) return;
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

  std::vector<double> numbers(const toml::table& table, const char* key, const std::string& where) {
    std::vector<double> read;
    const toml::node* node = table.get(key);
    const toml::array* items = node == nullptr ? nullptr : node->as_array();
    if (items != nullptr)
      for (const toml::node& item : *items) {
        if (const auto* v = item.as_integer()) read.push_back(static_cast<double>(v->get()));
        if (const auto* v = item.as_floating_point()) read.push_back(v->get());
      }
    const bool good =
        items != nullptr && !read.empty() && read.size() == items->size() &&
        std::all_of(read.begin(), read.end(), [](double v) { return v >= tiny && v <= huge; });
    if (!good)
      add(node == nullptr ? table.source() : node->source(),
          text("'", key, "' in ", where, " must be a list of numbers above 0"));
    return read;
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
    const std::size_t before = problems_.size();
    read_origin(table, where, {"hidden", "heads", "sequence", "micro_batch", "tensor", "seconds"},
                &block.origin, &block.from);
    const auto size = [&](const char* key) {
      const toml::node* node = table.get(key);
      const auto number = node == nullptr ? std::nullopt : whole_number(*node, 1, 100'000'000);
      if (!number)
        add(node == nullptr ? table.source() : node->source(),
            text("'", key, "' in ", where, " must be a whole number from 1 to 100000000"));
      return number.value_or(1);
    };
    block.hidden = size("hidden");
    block.heads = size("heads");
    block.sequence = size("sequence");
    block.micro_batch = static_cast<int>(size("micro_batch"));
    block.tensor = static_cast<int>(size("tensor"));
    const toml::node* seconds = table.get("seconds");
    const auto* number = seconds == nullptr ? nullptr : seconds->as_floating_point();
    if (number == nullptr || !(number->get() >= tiny && number->get() <= 1e6))
      add(seconds == nullptr ? table.source() : seconds->source(),
          text("'seconds' in ", where, " must be a number above 0, with a decimal point"));
    else
      block.seconds = number->get();
    if (problems_.size() == before) machine_.blocks.push_back(std::move(block));
  }

  void check_together() {
    if (machine_.reserved.value >= machine_.memory.value)
      add({}, text("'reserved' in [device] leaves nothing of 'memory': ", machine_.reserved.value,
                   " of ", machine_.memory.value, " bytes"));
  }

  const std::string& file_;
  Machine& machine_;
  bool has_devices_ = false;
  std::vector<std::string> seen_;
  std::vector<std::pair<std::uint32_t, std::string>> problems_;
};

std::string quoted_toml(const std::string& words) {
  std::ostringstream out;
  out << toml::value<std::string>(words);
  return out.str();
}

std::string number_toml(double value) {
  std::ostringstream out;
  out << std::setprecision(std::numeric_limits<double>::max_digits10) << value;
  const std::string digits = out.str();
  return digits.find_first_of(".e") == std::string::npos ? digits + ".0" : digits;
}

std::string origin_toml(Origin origin, const std::string& from) {
  return text("is = \"", to_string(origin), "\", from = ", quoted_toml(from));
}

std::string list_toml(const std::vector<double>& values) {
  std::vector<std::string> words;
  for (const double value : values) words.push_back(number_toml(value));
  return text("[", join(words, ", "), "]");
}

bool is_profile_name(const std::filesystem::path& path) {
  return !path.has_parent_path() && path.extension() != ".toml";
}

}  // namespace

std::string_view to_string(Origin origin) {
  return origin_names()[static_cast<std::size_t>(origin)];
}

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
      << "\ndevices_per_node = " << machine.devices_per_node << "\n";
  std::string section;
  const auto write = [&](const MachineField& field) {
    if (field.section != section) out << "\n[" << field.section << "]\n";
    section = field.section;
    const Figure& figure = field.of(copy);
    out << field.key << " = { value = " << number_toml(figure.value) << ", "
        << origin_toml(figure.origin, figure.from) << " }\n";
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
