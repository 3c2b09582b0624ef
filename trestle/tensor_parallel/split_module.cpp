#include "trestle/tensor_parallel/split_module.h"

#include <ATen/ops/cat.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/device/weight_kernel.h"
#include "trestle/tensor_parallel/column_linear.h"
#include "trestle/tensor_parallel/row_linear.h"
#include "trestle/tensor_parallel/split_kernel.h"
#include "trestle/tensor_parallel/vocabulary_embedding.h"

namespace trestle::tensor_parallel {

namespace {

using torch::nn::Module;

template <class Impl>
bool read_convolution(const Module& module, const char* type, bool is_transposed,
                      ModuleFacts* facts) {
  const auto* const typed = dynamic_cast<const Impl*>(&module);
  if (typed == nullptr) return false;
  facts->kind = ModuleKind::Convolution;
  facts->type = type;
  facts->outputs = typed->options.out_channels();
  facts->inputs = typed->options.in_channels();
  facts->groups = typed->options.groups();
  if (is_transposed) std::swap(facts->output_dimension, facts->input_dimension);
  return true;
}

template <class Impl>
bool read_batch_norm(const Module& module, const char* type, ModuleFacts* facts) {
  const auto* const typed = dynamic_cast<const Impl*>(&module);
  if (typed == nullptr) return false;
  facts->kind = ModuleKind::BatchNorm;
  facts->type = type;
  facts->outputs = facts->inputs = typed->options.num_features();
  return true;
}

bool read_linear(const Module& module, ModuleFacts* facts) {
  const auto* const typed = dynamic_cast<const torch::nn::LinearImpl*>(&module);
  if (typed == nullptr) return false;
  facts->kind = ModuleKind::Product;
  facts->type = "Linear";
  facts->outputs = typed->options.out_features();
  facts->inputs = typed->options.in_features();
  return true;
}

bool read_embedding(const Module& module, ModuleFacts* facts) {
  const auto* const typed = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module);
  if (typed == nullptr) return false;
  facts->kind = ModuleKind::Lookup;
  facts->type = "Embedding";
  facts->outputs = typed->options.embedding_dim();
  facts->inputs = typed->options.num_embeddings();
  std::swap(facts->output_dimension, facts->input_dimension);
  if (typed->options.max_norm()) facts->odd = "max_norm";
  if (typed->options.scale_grad_by_freq()) facts->odd = "scale_grad_by_freq";
  if (typed->options.sparse()) facts->odd = "sparse";
  return true;
}

bool read_other_norm(const Module& module, ModuleFacts* facts) {
  if (const auto* const group = dynamic_cast<const torch::nn::GroupNormImpl*>(&module)) {
    facts->kind = ModuleKind::GroupNorm;
    facts->type = "GroupNorm";
    facts->outputs = facts->inputs = group->options.num_channels();
    facts->groups = group->options.num_groups();
    return true;
  }
  if (dynamic_cast<const torch::nn::LayerNormImpl*>(&module) == nullptr) return false;
  facts->kind = ModuleKind::LayerNorm;
  facts->type = "LayerNorm";
  return true;
}

template <class Impl>
bool read_split_linear(const Module& module, const char* type, Split split, ModuleFacts* facts) {
  const auto* const typed = dynamic_cast<const Impl*>(&module);
  if (typed == nullptr) return false;
  facts->type = type;
  facts->outputs = typed->outputs;
  facts->inputs = typed->inputs;
  facts->own_rule = SplitRule{.layer = "", .split = split, .parts = typed->options.parts};
  return true;
}

bool read_split_embedding(const Module& module, ModuleFacts* facts) {
  const auto* const typed = dynamic_cast<const VocabularyEmbeddingImpl*>(&module);
  if (typed == nullptr) return false;
  facts->type = "VocabularyEmbedding";
  facts->outputs = typed->width;
  facts->inputs = typed->rows;
  facts->own_rule = SplitRule{.layer = "", .split = Split::Vocabulary};
  return true;
}

bool read(const Module& module, ModuleFacts* facts) {
  using namespace torch::nn;
  return read_split_linear<ColumnLinearImpl>(module, "ColumnLinear", Split::Columns, facts) ||
         read_split_linear<RowLinearImpl>(module, "RowLinear", Split::Rows, facts) ||
         read_split_embedding(module, facts) || read_linear(module, facts) ||
         read_embedding(module, facts) ||
         read_convolution<Conv1dImpl>(module, "Conv1d", false, facts) ||
         read_convolution<Conv2dImpl>(module, "Conv2d", false, facts) ||
         read_convolution<Conv3dImpl>(module, "Conv3d", false, facts) ||
         read_convolution<ConvTranspose1dImpl>(module, "ConvTranspose1d", true, facts) ||
         read_convolution<ConvTranspose2dImpl>(module, "ConvTranspose2d", true, facts) ||
         read_convolution<ConvTranspose3dImpl>(module, "ConvTranspose3d", true, facts) ||
         read_batch_norm<BatchNorm1dImpl>(module, "BatchNorm1d", facts) ||
         read_batch_norm<BatchNorm2dImpl>(module, "BatchNorm2d", facts) ||
         read_batch_norm<BatchNorm3dImpl>(module, "BatchNorm3d", facts) ||
         read_other_norm(module, facts);
}

bool splits_outputs(Split split) {
  return split == Split::Columns || split == Split::ColumnsGathered;
}

// The number of indices that a rule divides.
std::int64_t divided(const ModuleFacts& facts, Split split) {
  if (split == Split::Rows || split == Split::Vocabulary) return facts.inputs;
  return facts.outputs;
}

const char* name_of_divided(const ModuleFacts& facts, Split split) {
  if (split == Split::Vocabulary) return "rows";
  if (split == Split::Channels) return "channels";
  if (facts.kind == ModuleKind::Convolution)
    return split == Split::Rows ? "input channels" : "output channels";
  return split == Split::Rows ? "inputs" : "outputs";
}

bool can_be_split(const ModuleFacts& facts, Split split) {
  const bool grouped = facts.groups > 1;
  switch (facts.kind) {
    case ModuleKind::Product:
      return splits_outputs(split) || split == Split::Rows;
    case ModuleKind::Convolution:
      return grouped ? split == Split::Channels : splits_outputs(split) || split == Split::Rows;
    case ModuleKind::Lookup:
      return facts.odd.empty() && (splits_outputs(split) || split == Split::Vocabulary);
    case ModuleKind::BatchNorm:
    case ModuleKind::GroupNorm:
      return split == Split::Channels;
    default:
      return false;
  }
}

std::string possible_splits(const ModuleFacts& facts) {
  if (facts.own_rule) return "it is split already";
  if (!facts.odd.empty()) return text("with ", facts.odd, " an Embedding cannot be split");
  if (facts.kind == ModuleKind::LayerNorm)
    return "a LayerNorm needs all features, so it stands before a column layer or after a row "
           "layer";
  std::vector<std::string> splits;
  for (const Split one :
       {Split::Columns, Split::ColumnsGathered, Split::Rows, Split::Vocabulary, Split::Channels})
    if (can_be_split(facts, one)) splits.emplace_back(to_string(one));
  if (splits.empty()) return "it stays whole";
  return text(facts.type,
              facts.groups > 1 && facts.kind == ModuleKind::Convolution
                  ? text(" with ", facts.groups, " groups")
                  : std::string(),
              " can be split by ", join(splits, " or "));
}

std::vector<std::int64_t> parts_of(const ModuleFacts& facts, const SplitRule& rule) {
  if (!rule.parts.empty()) return rule.parts;
  return {divided(facts, rule.split)};
}

// The numbers of ranks that share `count` evenly.
std::string divisors(std::int64_t count) {
  std::vector<std::int64_t> all;
  for (std::int64_t one = 1; one <= count; ++one)
    if (count % one == 0) all.push_back(one);
  return join(all, ", ");
}

void add_uneven(const char* what, std::int64_t count, int ranks, std::vector<std::string>* faults) {
  if (count % ranks != 0)
    faults->push_back(text(count, " ", what, " cannot be shared by ", ranks,
                           " tensor ranks, but by ", divisors(count)));
}

// A kernel belongs to a weight; a norm has none.
std::optional<device::WeightOperator> operator_of(ModuleKind kind) {
  if (kind == ModuleKind::Product) return device::WeightOperator::Product;
  if (kind == ModuleKind::Convolution) return device::WeightOperator::Convolution;
  if (kind == ModuleKind::Lookup) return device::WeightOperator::Lookup;
  return std::nullopt;
}

void replace_by_slice(at::Tensor tensor, const nn::ParameterSlice& slice, const std::string& name) {
  if (device::is_slice(tensor)) {
    if (tensor.sizes() == at::IntArrayRef(slice.shape())) return;
    throw StateError(
        text("'", name, "' is a slice already, of shape [", join(tensor.sizes(), ", "), "]"));
  }
  std::vector<at::Tensor> ranges;
  for (const nn::IndexRange& range : slice.ranges)
    ranges.push_back(tensor.detach().narrow(slice.dimension, range.begin, range.size));
  // cat() of one tensor copies it too, so that the whole tensor's memory is freed.
  tensor.set_data(at::cat(ranges, slice.dimension).contiguous(tensor.suggest_memory_format()));
  tensor.mutable_grad() = at::Tensor();
  device::mark_as_slice(tensor);
}

// The numbers in a module's options of which its forward() computes.
void adapt_options(Module& module, const ModuleFacts& facts, const SplitRule& rule,
                   const TensorRanks& ranks) {
  if (auto* const norm = dynamic_cast<torch::nn::GroupNormImpl*>(&module))
    norm->options.num_groups(facts.groups / ranks.size());
  if (rule.split == Split::Channels && facts.kind == ModuleKind::Convolution) {
    const std::int64_t groups = facts.groups / ranks.size();
    const auto set_groups = [&](auto* convolution) {
      if (convolution != nullptr) convolution->options.groups(groups);
    };
    set_groups(dynamic_cast<torch::nn::Conv1dImpl*>(&module));
    set_groups(dynamic_cast<torch::nn::Conv2dImpl*>(&module));
    set_groups(dynamic_cast<torch::nn::Conv3dImpl*>(&module));
    set_groups(dynamic_cast<torch::nn::ConvTranspose1dImpl*>(&module));
    set_groups(dynamic_cast<torch::nn::ConvTranspose2dImpl*>(&module));
    set_groups(dynamic_cast<torch::nn::ConvTranspose3dImpl*>(&module));
  }
  auto* const table = dynamic_cast<torch::nn::EmbeddingImpl*>(&module);
  if (table == nullptr || rule.split != Split::Vocabulary || !table->options.padding_idx()) return;
  const nn::IndexRange own = ranks.own(facts.inputs);
  const std::int64_t row = *table->options.padding_idx() - own.begin;
  table->options.padding_idx(row >= 0 && row < own.size ? std::optional(row) : std::nullopt);
}

}  // namespace

ModuleFacts facts_of(const Module& module) {
  ModuleFacts facts;
  const bool known = read(module, &facts);
  if (!known) facts.type = module.name();
  const auto own = module.named_parameters(/*recurse=*/false);
  facts.has_weights = known || !own.is_empty() || module.named_buffers(false).size() > 0;
  if (!own.is_empty()) facts.element_bytes = own.begin()->value().element_size();
  return facts;
}

std::vector<std::string> faults_of(const ModuleFacts& facts, const SplitRule& rule, int ranks) {
  if (!can_be_split(facts, rule.split))
    return {text(facts.type, " cannot be split by ", to_string(rule.split), ": ",
                 possible_splits(facts))};
  std::vector<std::string> faults;
  const char* const what = name_of_divided(facts, rule.split);
  const std::int64_t whole = divided(facts, rule.split);
  const std::vector<std::int64_t> parts = parts_of(facts, rule);
  if (std::ranges::any_of(parts, [&](std::int64_t part) { return part > whole; })) {
    faults.push_back(text("it has ", whole, " ", what, ", fewer than one of its parts {",
                          join(parts, ", "), "}"));
    return faults;
  }
  const std::int64_t sum = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  if (sum != whole)
    faults.push_back(
        text("it has ", whole, " ", what, ", but the parts {", join(parts, ", "), "} have ", sum));
  if (rule.split == Split::ColumnsGathered && !rule.parts.empty())
    faults.push_back("its output is gathered, so it needs no parts");
  if (rule.split == Split::Vocabulary && (!rule.parts.empty() || rule.heads != 0))
    faults.push_back("rows of a vocabulary have no parts and no heads");
  const bool grouped = facts.groups > 1 || facts.kind == ModuleKind::GroupNorm;
  if (grouped) {
    add_uneven("groups", facts.groups, ranks, &faults);
    if (!rule.parts.empty()) faults.push_back("a layer with groups has no parts");
  }
  for (const std::int64_t part : parts) {
    if (part < ranks)
      faults.push_back(text(part, " ", what, " cannot be shared by ", ranks,
                            " tensor ranks: each of them needs one"));
    else if (rule.heads > 0 && part % rule.heads != 0)
      faults.push_back(text(part, " ", what, " do not divide into ", rule.heads, " heads"));
  }
  if (rule.heads < 0) faults.push_back(text(rule.heads, " heads"));
  if (rule.heads > 0) add_uneven("heads", rule.heads, ranks, &faults);
  return faults;
}

nn::ParameterSlices places_in(const Module& module, const SplitRule& rule,
                              const TensorRanks& ranks) {
  const ModuleFacts facts = facts_of(module);
  std::vector<nn::IndexRange> ranges;
  std::int64_t begin = 0;
  for (const std::int64_t part : parts_of(facts, rule)) {
    const nn::IndexRange own = ranks.own(part);
    ranges.push_back({begin + own.begin, own.size});
    begin += part;
  }
  nn::ParameterSlices places;
  const std::int64_t whole = divided(facts, rule.split);
  const auto add = [&](const std::string& name, const at::Tensor& tensor, std::int64_t dimension) {
    if (!tensor.defined() || tensor.dim() == 0) return;
    std::vector<std::int64_t> shape = tensor.sizes().vec();
    shape[static_cast<std::size_t>(dimension)] = whole;
    places[name] = {.whole = std::move(shape), .dimension = dimension, .ranges = ranges};
  };
  const bool inputs = rule.split == Split::Rows || rule.split == Split::Vocabulary;
  // torch::nn::functional::linear() adds the bias itself, to the whole output.
  const bool whole_bias =
      inputs || (rule.split == Split::ColumnsGathered && facts.kind == ModuleKind::Product);
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (item.key() == "weight") {
      const bool is_norm = !operator_of(facts.kind);
      const bool first = is_norm || rule.split == Split::Channels;
      add("weight", item.value(),
          first    ? 0
          : inputs ? facts.input_dimension
                   : facts.output_dimension);
    } else if (item.key() == "bias" && !whole_bias) {
      add("bias", item.value(), 0);
    }
  }
  if (facts.kind == ModuleKind::BatchNorm)
    for (const auto& item : module.named_buffers(/*recurse=*/false))
      add(item.key(), item.value(), 0);
  // A grouped convolution's transposed weight has its input channels first.
  if (rule.split == Split::Channels && facts.inputs != facts.outputs &&
      facts.input_dimension == 0 && places.contains("weight")) {
    nn::ParameterSlice& weight = places.at("weight");
    weight.whole[0] = facts.inputs;
    weight.ranges = {ranks.own(facts.inputs)};
  }
  return places;
}

SplitLayer describe(const Module& module, const SplitRule& rule, const TensorRanks& ranks) {
  const ModuleFacts facts = facts_of(module);
  SplitLayer line{.name = ranks.layer(), .type = facts.type, .split = rule.split};
  const nn::ParameterSlices places = places_in(module, rule, ranks);
  std::int64_t own = 0;
  const auto count = [&](const auto& items) {
    for (const auto& item : items) {
      if (!item.value().defined()) continue;
      const auto found = places.find(item.key());
      const auto bytes = [&](const std::vector<std::int64_t>& shape) {
        return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()) *
               static_cast<std::int64_t>(item.value().element_size());
      };
      const auto shape = item.value().sizes().vec();
      line.whole_bytes += bytes(found == places.end() ? shape : found->second.whole);
      line.own_bytes += bytes(found == places.end() ? shape : found->second.shape());
    }
  };
  count(module.named_parameters(false));
  count(module.named_buffers(false));
  for (const std::int64_t part : parts_of(facts, rule)) own += ranks.own(part).size;
  line.slice =
      text(own, " of ", divided(facts, rule.split), " ", name_of_divided(facts, rule.split));
  const char* const unit = facts.kind == ModuleKind::Convolution ? " per pixel" : " per token";
  const auto sent = [&](std::int64_t features) {
    return format_bytes(static_cast<Bytes>(features * facts.element_bytes)) + unit;
  };
  const bool sums = rule.split == Split::Rows || rule.split == Split::Vocabulary;
  const bool gathers = rule.split == Split::ColumnsGathered;
  line.forward = sums || gathers ? sent(facts.outputs) : "nothing";
  line.backward = splits_outputs(rule.split) && facts.kind != ModuleKind::Lookup
                      ? sent(facts.inputs)
                      : "nothing";
  if (ranks.alone()) line.forward = line.backward = "nothing";
  return line;
}

nn::ParameterSlices split_module(Module& module, const SplitRule& rule, const TensorRanks& ranks) {
  const ModuleFacts facts = facts_of(module);
  nn::ParameterSlices places = places_in(module, rule, ranks);
  const auto replace = [&](const auto& items) {
    for (const auto& item : items) {
      const auto found = places.find(item.key());
      if (found != places.end())
        replace_by_slice(item.value(), found->second, ranks.layer() + "." + item.key());
    }
  };
  replace(module.named_parameters(false));
  replace(module.named_buffers(false));
  const auto of = operator_of(facts.kind);
  if (of && rule.split != Split::Channels) {
    const at::Tensor weight = module.named_parameters(false)["weight"];
    device::set_weight_kernel(weight, *of,
                              make_split_kernel(ranks, rule.split, facts, weight.sizes().vec()));
  }
  adapt_options(module, facts, rule, ranks);
  return places;
}

}  // namespace trestle::tensor_parallel
