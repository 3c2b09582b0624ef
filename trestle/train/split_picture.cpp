#include "trestle/train/split_picture.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/plan_picture.h"
#include "trestle/train/split_layers.h"
#include "trestle/train/task.h"

namespace trestle::train {

namespace {

using models::TransformerConfig;
using Picture = view::SplitPicture;
using Kind = Picture::Message::Kind;
using Layout = Picture::Layout;

// Slices come from the model's own layers; the config gives their parts names and heads.
class TransformerPicture {
 public:
  explicit TransformerPicture(const recipe::Recipe& recipe)
      : recipe_(recipe),
        config_(transformer_config(recipe)),
        ranks_(static_cast<int>(recipe.mesh.tensor)),
        sequence_(recipe.mesh.sequence_parallel && ranks_ > 1),
        adapters_(adapter_options(recipe)),
        frozen_(adapters_.any() || frozen_type(recipe) != models::FrozenType::Float32) {
    for (int rank = 0; rank < ranks_; ++rank) read(rank);
  }

  Picture take() && {
    Picture picture{.title = title(), .subtitle = subtitle(), .ranks = ranks_};
    picture.sections = {{.name = "embed", .steps = {embedding()}},
                        {.name = "blocks.0", .copies = config_.layers, .steps = block()},
                        {.name = "norm and head", .steps = {norm("norm"), head()}}};
    return picture;
  }

 private:
  // ---- the tensors ----

  // The slices of one rank's layers. Layers are created one at a time, with unset weights.
  void read(int rank) {
    models::TransformerOptions options;
    options.weights = models::InitialWeights::Unset;
    options.attention = models::parse_attention_core(recipe_.transformer.attention);
    options.adapters = adapters_;
    options.frozen_type = frozen_type(recipe_);
    options.tensor = {.ranks = tensor_parallel::TensorRanks::on_paper(rank, ranks_),
                      .sequence = recipe_.mesh.sequence_parallel};
    const nn::Graph graph = models::transformer(config_, options).graph();
    for (const nn::Layer& layer : graph.layers) {
      if (layer.name.starts_with("blocks.") && layer.name != "blocks.0") continue;
      const std::shared_ptr<void> for_now = layer.module.make_temporarily();
      const nn::ParameterSlices slices = layer.parameter_slices();
      for (const auto& [name, tensor] : layer.named_parameters()) {
        const auto slice = slices.find(name);
        add(layer.name + "." + name, tensor, slice == slices.end() ? nullptr : &slice->second);
      }
    }
    for (const nn::ParameterTie& tie : graph.ties) tied(graph, tie);
  }

  static std::size_t last_dot(const std::string& name) { return name.rfind('.'); }

  void add(const std::string& name, const at::Tensor& tensor, const nn::ParameterSlice* slice) {
    const std::string module = name.substr(0, last_dot(name));
    auto& tensors = tensors_[module];
    auto found = std::ranges::find(tensors, name.substr(module.size() + 1), &Picture::Tensor::name);
    if (found == tensors.end()) {
      tensors.push_back({.name = name.substr(module.size() + 1),
                         .shape = slice != nullptr ? slice->whole : tensor.sizes().vec(),
                         .element_bytes = static_cast<Bytes>(tensor.element_size())});
      found = std::prev(tensors.end());
      if (slice != nullptr) found->dimension = static_cast<std::size_t>(slice->dimension);
      found->is_table = module == "embed" || module == "head";
    }
    if (slice == nullptr) return;
    auto& ranges = found->held.emplace_back();
    for (const nn::IndexRange& range : slice->ranges) ranges.push_back({range.begin, range.size});
  }

  // The user's tensor has the owner's slices.
  void tied(const nn::Graph& graph, const nn::ParameterTie& tie) {
    const auto name_of = [&](int layer) {
      return graph.layers[static_cast<std::size_t>(layer)].name;
    };
    const auto& owners = tensors_.at(name_of(tie.owner));
    Picture::Tensor tensor =
        *std::ranges::find(owners, tie.owner_parameter, &Picture::Tensor::name);
    tensor.name = tie.parameter;
    tensor.tied_to = name_of(tie.owner) + "." + tie.owner_parameter;
    tensors_[name_of(tie.layer)] = {std::move(tensor)};
  }

  std::vector<Picture::Tensor> tensors(const std::string& module,
                                       const std::vector<Picture::Part>& parts = {}) const {
    std::vector<Picture::Tensor> found = tensors_.at(module);
    for (Picture::Tensor& tensor : found) {
      if (tensor.held.empty() && (parts.size() < 2 || ranks_ > 1)) continue;
      tensor.parts = parts;
      if (parts.empty()) tensor.parts = {{.size = tensor.shape[tensor.dimension]}};
    }
    return found;
  }

  // Those of all rows of a module, or of its parts.
  std::vector<Picture::Tensor> adapters(const std::string& module,
                                        const std::vector<Picture::Part>& parts) const {
    std::vector<Picture::Tensor> all;
    const auto add = [&](const std::string& name, const std::vector<Picture::Part>& of) {
      const auto found = tensors_.find(module + "." + name);
      if (found == tensors_.end()) return;
      for (Picture::Tensor tensor : found->second) {
        tensor.name = name + "." + tensor.name;
        if (!tensor.held.empty()) tensor.parts = of;
        all.push_back(std::move(tensor));
      }
    };
    add("lora", parts);
    for (const Picture::Part& part : parts) add("lora_" + part.name, {part});
    return all;
  }

  // ---- words ----

  std::string title() const {
    return text(
        recipe_.transformer.config.empty() ? recipe_.model.name : recipe_.transformer.config,
        ranks_ == 1 ? " on " : " over ", counted(ranks_, "tensor rank"));
  }

  std::string subtitle() const {
    std::string words =
        text("width ", format_count(config_.width), " · ", counted(config_.heads, "head"));
    if (config_.kv_heads != config_.heads)
      words += text(", ", config_.kv_heads, " of keys and values");
    words += text(" · MLP ", format_count(config_.mlp), " · ", counted(config_.layers, "block"),
                  " · ", format_count(config_.vocabulary), " tokens");
    if (adapters_.any()) words += text(" · adapters of rank ", adapters_.rank);
    if (sequence_) words += " · sequence_parallel: norms and sums on each rank's tokens";
    return words;
  }

  std::string activations() const {
    return text(format_count(config_.width), " numbers per token");
  }

  // ---- the messages ----

  bool alone() const { return ranks_ == 1; }

  // Before a layer that takes whole activations and whose output the ranks share.
  Picture::Exchange to_columns() const {
    if (alone()) return {};
    if (!sequence_)
      return {.backward = {{Kind::AllReduce, activations() + ", the input's gradient"}}};
    Picture::Exchange exchange{.forward = {{Kind::AllGather, activations()}}};
    if (!frozen_)
      exchange.backward.push_back({Kind::AllGather, activations() + ", the input again"});
    exchange.backward.push_back({Kind::ReduceScatter, activations() + ", the input's gradient"});
    return exchange;
  }

  static std::int64_t numbers_of(const std::vector<Picture::Tensor>& tensors, const char* matrix,
                                 std::size_t dimension) {
    std::int64_t numbers = 0;
    for (const Picture::Tensor& one : tensors)
      if (one.name.ends_with(matrix))
        numbers += dimension == 0 ? one.shape[0] : one.shape[0] * one.shape[1];
    return numbers;
  }

  // Messages of adapters beside a matrix whose outputs the ranks share.
  void add_messages_of_columns(const std::vector<Picture::Tensor>& added,
                               Picture::Exchange* exchange) const {
    if (alone() || added.empty()) return;
    const std::string inner = text(format_count(numbers_of(added, ".a", 0)), " numbers per token");
    if (!sequence_) {
      exchange->backward.push_back({Kind::AllReduce, inner + ", the gradients of a's products"});
      return;
    }
    exchange->forward.push_back({Kind::AllGather, inner + ": a's products"});
    exchange->backward.push_back({Kind::ReduceScatter, inner + ", the gradients of a's products"});
    exchange->backward.push_back({Kind::AllReduce, text(format_count(numbers_of(added, ".a", 1)),
                                                        " numbers, the gradients of a")});
  }

  // After a layer whose outputs are terms of a sum.
  Picture::Exchange to_sum() const {
    if (alone()) return {};
    if (!sequence_) return {.forward = {{Kind::AllReduce, activations() + ": the sum"}}};
    return {.forward = {{Kind::ReduceScatter, activations() + ": the sum"}},
            .backward = {{Kind::AllGather, activations() + ", the output's gradient"}}};
  }

  Layout between() const { return sequence_ ? Layout::Tokens : Layout::Whole; }
  Layout split_by(Layout layout) const { return alone() ? Layout::Whole : layout; }

  // ---- the steps ----

  Picture::Step embedding() const {
    Picture::Step step{.name = "embed",
                       .note = alone() ? "" : "each rank looks up the tokens of its rows",
                       .tensors = tensors("embed"),
                       .output = split_by(Layout::Terms),
                       .after = to_sum()};
    const bool gpt2 = config_.style == TransformerConfig::Style::Gpt2;
    if (sequence_ && gpt2) {
      // Positions are added to whole sums.
      step.after = {.forward = {{Kind::AllReduce, activations() + ": the sum"}},
                    .backward = {{Kind::AllGather, activations() + ", the output's gradient"}}};
    }
    if (frozen_) step.after.backward.clear();
    return step;
  }

  Picture::Step norm(const std::string& module) const {
    Picture::Step step{
        .name = short_name(module),
        .note = config_.style == TransformerConfig::Style::Gpt2 ? "layer norm" : "RMS norm",
        .tensors = tensors(module),
        .input = between(),
        .output = between()};
    if (sequence_ && !frozen_) {
      std::int64_t numbers = 0;
      for (const auto& tensor : step.tensors) numbers += tensor.shape[0];
      step.before.backward = {
          {Kind::AllReduce, text(format_count(numbers), " numbers, the gradients of the norm")}};
    }
    return step;
  }

  static std::string short_name(const std::string& module) {
    return module.starts_with("blocks.0.") ? module.substr(9) : module;
  }

  Picture::Step columns(const std::string& module, const std::string& note,
                        const std::vector<Picture::Part>& parts) const {
    Picture::Step step{.name = short_name(module),
                       .note = note,
                       .tensors = tensors(module, parts),
                       .before = to_columns(),
                       .output = split_by(Layout::Features)};
    const auto added = adapters(module, parts);
    add_messages_of_columns(added, &step.before);
    step.tensors.insert(step.tensors.end(), added.begin(), added.end());
    return step;
  }

  Picture::Step rows(const std::string& module, const std::string& note,
                     const std::vector<Picture::Part>& parts) const {
    Picture::Step step{.name = short_name(module),
                       .note = note,
                       .tensors = tensors(module, parts),
                       .input = split_by(Layout::Features),
                       .output = split_by(Layout::Terms),
                       .after = to_sum()};
    const auto added = adapters(module, parts);
    if (!alone() && !added.empty())
      step.after.backward.push_back({Kind::AllReduce, text(format_count(numbers_of(added, ".b", 1)),
                                                           " numbers, the gradient of b")});
    step.tensors.insert(step.tensors.end(), added.begin(), added.end());
    return step;
  }

  Picture::Step attention() const {
    const std::int64_t size = config_.head_size;
    Picture::Part keys{.size = config_.kv_heads * size, .heads = config_.kv_heads};
    const bool gathers = config_.kv_heads % ranks_ != 0;
    if (gathers)
      for (int rank = 0; rank < ranks_; ++rank)
        keys.gathered_head.push_back(rank * config_.kv_heads / ranks_);
    Picture::Part values = keys;
    keys.name = "k";
    values.name = "v";
    Picture::Step step = columns(
        "blocks.0.attention.qkv", "queries, keys and values",
        {{.name = "q", .size = config_.heads * size, .heads = config_.heads}, keys, values});
    if (!gathers) return step;
    const std::string numbers =
        text(format_count(2 * config_.kv_heads * size), " numbers per token");
    step.after = {.forward = {{Kind::AllGather, numbers + ": all keys and values"}},
                  .backward = {{Kind::ReduceScatter, numbers + ", their gradients"}}};
    return step;
  }

  std::vector<Picture::Step> block() const {
    const bool gated = config_.style == TransformerConfig::Style::Llama;
    const std::int64_t outputs = config_.heads * config_.head_size;
    std::vector<Picture::Part> up = {{.size = config_.mlp}};
    if (gated) up = {{.name = "gate", .size = config_.mlp}, {.name = "up", .size = config_.mlp}};
    return {norm("blocks.0.attention_norm"),
            attention(),
            rows("blocks.0.attention.out", "the heads' outputs, added up",
                 {{.size = outputs, .heads = config_.heads}}),
            norm("blocks.0.mlp_norm"),
            columns(gated ? "blocks.0.mlp.gate_up" : "blocks.0.mlp.up",
                    gated ? "the MLP's gate and first layer" : "the MLP's first layer", up),
            rows("blocks.0.mlp.down", "the MLP's second layer", {{.size = config_.mlp}})};
  }

  Picture::Step head() const {
    Picture::Step step = columns("head", "each rank has the scores of its rows", {});
    if (alone()) step.note = "the scores";
    if (config_.tied_head) step.note += "; the weight is that of embed.tokens";
    if (alone()) return step;
    if (splits_scores(recipe_))
      step.after.forward = {
          {Kind::AllReduce, "1 number per token: the largest score"},
          {Kind::AllReduce, "2 numbers per token: the target's score and the sum of exponentials"}};
    else
      step.after.forward = {{Kind::AllGather, text(format_count(models::table_rows(config_)),
                                                   " numbers per token: all scores")}};
    return step;
  }

  const recipe::Recipe& recipe_;
  TransformerConfig config_;
  int ranks_;
  bool sequence_;
  models::LowRankOptions adapters_;
  bool frozen_;                                                  // all but the adapters
  std::map<std::string, std::vector<Picture::Tensor>> tensors_;  // by module
};

}  // namespace

view::SplitPicture split_picture(const recipe::Recipe& recipe, const models::OwnModels& own) {
  check_split_of_layers(recipe);
  if (recipe.mesh.tensor > view::most_split_ranks)
    throw UsageError(text("a split over ", recipe.mesh.tensor, " ranks cannot be drawn"),
                     {.hint = text("A picture has 1 to ", view::most_split_ranks, " ranks.")});
  if (!is_transformer(recipe) || own.contains(recipe.model.name)) return plan_picture(recipe, own);
  return TransformerPicture(recipe).take();
}

}  // namespace trestle::train
