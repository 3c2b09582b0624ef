#include "trestle/checkpoint/files/pickle/pickle.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/byte_cursor.h"
#include "trestle/checkpoint/files/pickle/storage_types.h"
#include "trestle/checkpoint/files/safetensors_header.h"

namespace trestle::checkpoint {

namespace {

using Kind = PickledValue::Kind;

enum class Function : std::int64_t {
  OrderedDict,
  RebuildTensor,
  RebuildParameter,
  RebuildFromType,
  Size
};

constexpr std::array<std::pair<std::string_view, Function>, 5> functions = {{
    {"collections.OrderedDict", Function::OrderedDict},
    {"torch._utils._rebuild_tensor_v2", Function::RebuildTensor},
    {"torch._utils._rebuild_parameter", Function::RebuildParameter},
    {"torch._tensor._rebuild_from_type_v2", Function::RebuildFromType},
    {"torch.Size", Function::Size},
}};

PickledValue at_place(Kind kind, std::size_t place) {
  return {kind, static_cast<std::int64_t>(place), {}};
}

class Machine {
 public:
  Machine(std::string_view bytes, const std::string& file, const PickleOptions& options)
      : bytes_(bytes, file), file_(file), options_(options) {}

  Pickle run() {
    if (bytes_.left() > longest_pickle)
      fail(text("its pickle has ", bytes_.left(), " bytes, more than the limit of ",
                longest_pickle));
    if (bytes_.byte() != 0x80) fail("it does not begin like a pickle");
    if (const int protocol = bytes_.byte(); protocol < 2 || protocol > options_.newest_protocol)
      fail(text("it has pickle protocol ", protocol, "; torch.save writes 2 by default"));
    while (step()) {
    }
    if (bytes_.left() != 0) fail("there are bytes after the pickle");
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(text("cannot trust the tensors in this file: ", what), {.file = file_});
  }
  [[noreturn]] void throw_unsupported(std::string_view name) const {
    throw FormatError(
        text("contains '", shown(name),
             "'; only tensors, dict, list, tuple, str and numbers are supported"),
        {.file = file_,
         .hint = "In Python, save only tensors: torch.save(model.state_dict(), file) for "
                 "weights, torch.save({\"x\": x}, file) for data."});
  }

  // Counts everything that takes memory.
  void count() {
    if (++made_ > most_values) fail(text("its pickle creates more than ", most_values, " values"));
  }
  void push(PickledValue value) {
    count();
    stack_.push_back(value);
  }
  void push_integer(std::int64_t value) { push({Kind::Integer, value, {}}); }
  // Number of values above the last mark.
  std::size_t above() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }
  PickledValue& top() {
    if (above() == 0) fail("its pickle pops from an empty stack");
    return stack_.back();
  }
  PickledValue pop() {
    const PickledValue value = top();
    stack_.pop_back();
    return value;
  }
  // Pops the values above the last mark, and the mark.
  std::vector<PickledValue> pop_to_mark() {
    if (marks_.empty()) fail("its pickle lacks a mark");
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PickledValue> values(from, stack_.end());
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return values;
  }

  void push_sequence(std::vector<PickledValue> values) {
    pickle_.sequences.push_back(std::move(values));
    push(at_place(Kind::Sequence, pickle_.sequences.size() - 1));
  }
  void push_tuple_of(std::size_t count) {
    if (above() < count) fail("its pickle pops from an empty stack");
    const auto from = stack_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<PickledValue> values(from, stack_.end());
    stack_.erase(from, stack_.end());
    push_sequence(std::move(values));
  }
  void push_dict() {
    pickle_.dicts.emplace_back();
    push(at_place(Kind::Dict, pickle_.dicts.size() - 1));
  }
  Pickle::Dict& dict_at_top() {
    if (top().kind != Kind::Dict) fail("its pickle sets an entry of a value that is not a dict");
    return pickle_.dicts[top().place()];
  }
  std::vector<PickledValue>& list_at_top() {
    if (top().kind != Kind::Sequence) fail("its pickle appends to a value that is not a list");
    return pickle_.sequences[top().place()];
  }
  const std::vector<PickledValue>& sequence(const PickledValue& value, const char* what) const {
    if (value.kind != Kind::Sequence) fail(text(what, " is not a tuple"));
    return pickle_.sequences[value.place()];
  }

  void long_integer(std::size_t count) {
    if (count > 8) {
      bytes_.take(count);
      return push({Kind::Real, 0, {}});
    }
    const std::uint64_t value = bytes_.little_endian(count);
    // Two's complement of `count` bytes.
    const unsigned unused = 64 - 8 * static_cast<unsigned>(count);
    push_integer(count == 0 ? 0 : static_cast<std::int64_t>(value << unused) >> unused);
  }

  void remember(std::uint64_t number) {
    count();
    memo_[number] = top();
  }
  void recall(std::uint64_t number) {
    const auto found = memo_.find(number);
    if (found == memo_.end()) fail(text("its pickle uses memo ", number, ", which was never set"));
    push(found->second);
  }

  void push_global() {
    const std::string_view module = bytes_.line();
    push_known(text(module, ".", bytes_.line()));
  }
  // The names are on the stack.
  void push_stack_global() {
    const PickledValue name = pop(), module = pop();
    if (name.kind != Kind::String || module.kind != Kind::String)
      fail("its pickle names a class by a value that is not a string");
    push_known(text(module.text, ".", name.text));
  }
  void push_known(const std::string& name) {
    for (const auto& [known, function] : functions)
      if (name == known) return push({Kind::Function, static_cast<std::int64_t>(function), {}});
    for (const StorageType& type : storage_types)
      if (name == type.python) return push({Kind::Dtype, 0, type.dtype});
    for (const std::string_view known : options_.classes)
      if (name == known) return push({Kind::Class, 0, known});
    throw_unsupported(name);
  }

  void push_object(const PickledValue& type, const PickledValue& arguments) {
    if (type.kind != Kind::Class) fail("its pickle creates an object of a value that is no class");
    sequence(arguments, "the arguments of a class");
    pickle_.objects.push_back({type.text, arguments, {}});
    push(at_place(Kind::Object, pickle_.objects.size() - 1));
  }

  // Attributes. Those of an OrderedDict, such as "_metadata", are not needed for tensors.
  void set_state() {
    const PickledValue state = pop();
    if (top().kind == Kind::Object)
      pickle_.objects[top().place()].state = state;
    else
      dict_at_top();
  }

  void call() {
    const PickledValue arguments = pop();
    const PickledValue function = pop();
    if (function.kind == Kind::Class) return push_object(function, arguments);
    if (function.kind != Kind::Function) fail("its pickle calls a value that is not a function");
    const auto& values = sequence(arguments, "the arguments of a function");
    switch (static_cast<Function>(function.number)) {
      case Function::OrderedDict:
        if (!values.empty()) fail("it creates an OrderedDict in a way that torch.save does not");
        return push_dict();
      case Function::Size:
        if (values.size() != 1 || values[0].kind != Kind::Sequence)
          fail("a torch.Size is not a tuple");
        return push(values[0]);
      case Function::RebuildParameter:  // (tensor, requires_grad, hooks)
        if (values.empty() || values[0].kind != Kind::Tensor) fail("a parameter is not a tensor");
        return push(values[0]);
      case Function::RebuildFromType:  // (function, class, its arguments, attributes)
        if (values.size() != 4 || values[0].kind != Kind::Function ||
            static_cast<Function>(values[0].number) != Function::RebuildTensor ||
            values[1].kind != Kind::Class || values[1].text != "torch.Tensor")
          fail("a tensor with attributes is not built as torch.save does");
        return push(rebuild_tensor(sequence(values[2], "the arguments of a tensor")));
      case Function::RebuildTensor:
        return push(rebuild_tensor(values));
    }
  }

  // A storage is given as ("storage", type, key, device, elements).
  void push_storage() {
    const PickledValue id = pop();
    const auto& parts = sequence(id, "the id of a storage");
    if (parts.size() != 5 || parts[0].kind != Kind::String || parts[0].text != "storage" ||
        parts[1].kind != Kind::Dtype || parts[2].kind != Kind::String ||
        parts[4].kind != Kind::Integer || parts[4].number < 0)
      fail("a storage is not described as torch.save does");
    PickledStorage storage{std::string(parts[2].text), std::string(parts[1].text),
                           static_cast<std::uint64_t>(parts[4].number)};
    const auto [found, is_new] = storages_.try_emplace(storage.key, pickle_.storages.size());
    if (!is_new) {
      const PickledStorage& before = pickle_.storages[found->second];
      if (before.dtype != storage.dtype || before.elements != storage.elements)
        fail(text("its storage '", shown(storage.key), "' has two different descriptions"));
    } else {
      pickle_.storages.push_back(std::move(storage));
    }
    push(at_place(Kind::Storage, found->second));
  }

  std::vector<std::int64_t> sizes(const PickledValue& value, const char* what) const {
    std::vector<std::int64_t> out;
    for (const PickledValue& size : sequence(value, what)) {
      if (size.kind != Kind::Integer || size.number < 0)
        fail(text(what, " is not a tuple of sizes"));
      out.push_back(size.number);
    }
    return out;
  }

  // The flags of a tensor's values: {"conj": False, "neg": True}.
  bool is_negated(const PickledValue& metadata, const PickledTensor& tensor) const {
    if (metadata.kind != Kind::Dict) fail("a tensor's flags are not a dict");
    bool negated = false;
    for (const auto& [key, value] : pickle_.dicts[metadata.place()]) {
      if (key.kind != Kind::String || value.kind != Kind::Bool ||
          (key.text != "neg" && value.number))
        fail(text("a tensor has the unsupported flag '", shown(key.text), "'"));
      negated = negated || value.number != 0;
    }
    if (negated && pickle_.storages[tensor.storage].dtype == "BOOL")
      fail("a tensor of bools is negated");
    return negated;
  }

  // (storage, offset, shape, strides, requires_grad, hooks), and sometimes metadata.
  PickledValue rebuild_tensor(const std::vector<PickledValue>& values) {
    if (values.size() < 6 || values.size() > 7 || values[0].kind != Kind::Storage ||
        values[1].kind != Kind::Integer || values[1].number < 0)
      fail("a tensor is not built as torch.save does");
    PickledTensor tensor{values[0].place(), values[1].number,
                         sizes(values[2], "the shape of a tensor"),
                         sizes(values[3], "the strides of a tensor")};
    check_tensor(tensor);
    if (values.size() > 6) tensor.negated = is_negated(values[6], tensor);
    pickle_.tensors.push_back(std::move(tensor));
    return at_place(Kind::Tensor, pickle_.tensors.size() - 1);
  }

  void check_tensor(const PickledTensor& tensor) const {
    constexpr std::size_t most_dimensions = 64;
    const PickledStorage& storage = pickle_.storages[tensor.storage];
    const auto bad = [&](const std::string& what) {
      fail(text("a tensor of shape [", join(tensor.shape, ", "), "] ", what));
    };
    if (tensor.shape.size() != tensor.strides.size() || tensor.shape.size() > most_dimensions)
      bad("has a different number of strides than sizes");
    std::int64_t elements = 1, last = tensor.offset;
    std::int64_t bytes = dtype_bytes(storage.dtype);
    bool empty = false;
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      const std::int64_t size = tensor.shape[i];
      empty = empty || size == 0;
      std::int64_t span = 0;
      if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes) ||
          __builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements) ||
          (size > 0 && (__builtin_mul_overflow(size - 1, tensor.strides[i], &span) ||
                        __builtin_add_overflow(last, span, &last))))
        bad("is larger than any memory");
    }
    if (empty ? static_cast<std::uint64_t>(tensor.offset) > storage.elements
              : static_cast<std::uint64_t>(last) >= storage.elements)
      bad(text("at ", tensor.offset, " with strides [", join(tensor.strides, ", "),
               "] does not fit into its storage of ", storage.elements));
  }

  // Each of the next three executes one opcode of its group. Returns false for other opcodes.
  bool push_scalar(int opcode) {
    switch (opcode) {
      case 'N':
        push({});
        break;
      case 0x88:
      case 0x89:
        push({Kind::Bool, opcode == 0x88, {}});
        break;
      case 'K':
        push_integer(bytes_.byte());
        break;
      case 'M':
        push_integer(static_cast<std::int64_t>(bytes_.little_endian(2)));
        break;
      case 'J':
        push_integer(static_cast<std::int32_t>(bytes_.little_endian(4)));
        break;
      case 0x8a:
        long_integer(static_cast<std::size_t>(bytes_.byte()));
        break;
      case 'G':  // the only number that is big-endian
        push({Kind::Real,
              static_cast<std::int64_t>(__builtin_bswap64(bytes_.little_endian(8))),
              {}});
        break;
      case 'X':
        push({Kind::String, 0, bytes_.take(bytes_.little_endian(4))});
        break;
      case 0x8c:
        push({Kind::String, 0, bytes_.take(bytes_.little_endian(1))});
        break;
      case 0x8d:
        push({Kind::String, 0, bytes_.take(bytes_.little_endian(8))});
        break;
      default:
        return false;
    }
    return true;
  }

  bool change_container(int opcode) {
    switch (opcode) {
      case ')':
      case ']':
        push_sequence({});
        break;
      case 't':
        push_sequence(pop_to_mark());
        break;
      case 0x85:
      case 0x86:
      case 0x87:
        push_tuple_of(static_cast<std::size_t>(opcode - 0x84));
        break;
      case 'a': {
        const PickledValue value = pop();
        list_at_top().push_back(value);
        break;
      }
      case 'e': {
        const std::vector<PickledValue> values = pop_to_mark();
        auto& list = list_at_top();
        list.insert(list.end(), values.begin(), values.end());
        break;
      }
      case '}':
        push_dict();
        break;
      case 's': {
        const PickledValue value = pop(), key = pop();
        dict_at_top().emplace_back(key, value);
        break;
      }
      case 'u': {
        const std::vector<PickledValue> values = pop_to_mark();
        if (values.size() % 2 != 0) fail("its pickle has a key without a value");
        Pickle::Dict& dict = dict_at_top();
        for (std::size_t i = 0; i < values.size(); i += 2)
          dict.emplace_back(values[i], values[i + 1]);
        break;
      }
      case 'b':
        set_state();
        break;
      default:
        return false;
    }
    return true;
  }

  bool use_memo_or_call(int opcode) {
    switch (opcode) {
      case 'q':
        remember(static_cast<std::uint64_t>(bytes_.byte()));
        break;
      case 'r':
        remember(bytes_.little_endian(4));
        break;
      case 'h':
        recall(static_cast<std::uint64_t>(bytes_.byte()));
        break;
      case 'j':
        recall(bytes_.little_endian(4));
        break;
      case 0x94:
        remember(memo_.size());
        break;
      case 'c':
        push_global();
        break;
      case 0x93:
        push_stack_global();
        break;
      case 0x81: {
        const PickledValue arguments = pop(), type = pop();
        push_object(type, arguments);
        break;
      }
      case 0x95:  // the length of a frame
        bytes_.take(8);
        break;
      case 'R':
        call();
        break;
      case 'Q':
        push_storage();
        break;
      default:
        return false;
    }
    return true;
  }

  // Executes one opcode. Returns false for the last.
  bool step() {
    const std::size_t began = bytes_.position();
    const int opcode = bytes_.byte();
    if (opcode == '.') {
      pickle_.root = pop();
      if (!stack_.empty() || !marks_.empty()) fail("its pickle leaves values on the stack");
      return false;
    }
    if (opcode == '(') {
      count();
      marks_.push_back(stack_.size());
    } else if (!push_scalar(opcode) && !change_container(opcode) && !use_memo_or_call(opcode)) {
      fail(text("its pickle has opcode ", opcode, " at byte ", began,
                ", which torch.save does not use for tensors"));
    }
    return true;
  }

  ByteCursor bytes_;
  const std::string& file_;
  const PickleOptions& options_;
  std::size_t made_ = 0;
  Pickle pickle_;
  std::vector<PickledValue> stack_;
  std::vector<std::size_t> marks_;  // the size of the stack at each mark
  std::unordered_map<std::uint64_t, PickledValue> memo_;
  std::unordered_map<std::string, std::size_t> storages_;  // by key
};

}  // namespace

std::string shown(std::string_view name) {
  constexpr std::size_t longest = 200;
  std::string out;
  for (const char c : name.substr(0, longest))
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return name.size() > longest ? out + "..." : out;
}

Pickle parse_pickle(std::string_view bytes, const std::string& file, const PickleOptions& options) {
  return Machine(bytes, file, options).run();
}

}  // namespace trestle::checkpoint
