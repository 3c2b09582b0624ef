#include "trestle/train/language/load_public_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/models/transformer/int8_rows.h"
#include "trestle/models/transformer/public_weights.h"
#include "trestle/models/transformer/vocabulary.h"

namespace trestle::train {

namespace {

using StoredTensors = std::vector<checkpoint::StoredTensor>;

// Whose names the file has; nothing: trestle's own.
std::optional<models::PublicNames> names_in(const StoredTensors& file) {
  for (const checkpoint::StoredTensor& tensor : file) {
    if (tensor.name == "token_embd.weight") return models::PublicNames::Gguf;
    if (tensor.name.ends_with("wte.weight") || tensor.name == "model.embed_tokens.weight")
      return models::PublicNames::HuggingFace;
  }
  return std::nullopt;
}

constexpr std::string_view scales_end = ".scales";

bool has_scales(const StoredTensors& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const checkpoint::StoredTensor& one) {
    return one.name.ends_with(scales_end);
  });
}

// A model's tensors with fp32 matrices in the place of its int8 rows (int8_rows.h), to load weights
// of floating types: round() fills the rows and scales from the matrices. A tensor rank that holds
// some of the inputs has the matrix of all inputs here, whose largest numbers give the scales.
class ExactMatrices {
 public:
  ExactMatrices(const NamedTensors& ours, const nn::ParameterSlices& slices) : slices_(slices) {
    std::map<std::string, at::Tensor> scales;
    for (const auto& [name, tensor] : ours)
      if (name.ends_with(scales_end))
        scales[name.substr(0, name.size() - scales_end.size()) + ".weight"] = tensor.detach();
    for (const auto& [name, tensor] : ours) {
      if (name.ends_with(scales_end)) continue;
      const auto found = scales.find(name);
      tensors_.emplace_back(name, tensor);
      if (found == scales.end()) continue;
      Matrix matrix{.into = {.rows = tensor.detach(), .scales = found->second}};
      const auto slice = slices_.find(name);
      if (slice != slices_.end() && slice->second.dimension == 1) {
        matrix.inputs = slice->second.whole[1];
        matrix.own = slice->second.ranges[0];
        slices_.erase(slice);
      }
      matrix.exact = exact(matrix);
      tensors_.back().second = matrix.exact;
      matrices_.push_back(std::move(matrix));
    }
  }

  const NamedTensors& tensors() const { return tensors_; }
  const nn::ParameterSlices& slices() const { return slices_; }  // of tensors()

  void round() {
    const at::NoGradGuard no_grad;
    for (Matrix& one : matrices_) {
      if (at::equal(one.exact, exact(one))) continue;  // the file has other tensors
      const models::Int8Rows rounded = models::to_int8_rows(one.exact);
      one.into.rows.copy_(one.own ? rounded.rows.narrow(1, one.own->begin, one.own->size)
                                  : rounded.rows);
      one.into.scales.copy_(rounded.scales);
    }
  }

 private:
  struct Matrix {
    at::Tensor exact = {};
    models::Int8Rows into;
    std::int64_t inputs = 0;
    std::optional<nn::IndexRange> own = {};  // the inputs that this rank holds; nothing: all
  };

  // The matrix that the rows stand for, with zeros at the inputs of other ranks.
  static at::Tensor exact(const Matrix& matrix) {
    const at::Tensor own = models::from_int8_rows(matrix.into, at::kFloat).to(at::kCPU);
    if (!matrix.own) return own;
    const at::Tensor all = at::zeros({own.size(0), matrix.inputs});
    all.narrow(1, matrix.own->begin, matrix.own->size).copy_(own);
    return all;
  }

  NamedTensors tensors_;
  nn::ParameterSlices slices_;
  std::vector<Matrix> matrices_;
};

bool is_adapter(const std::string& name) { return name.find(".lora") != std::string::npos; }

// The table's name in a file with these names.
std::string name_of_table(const models::TransformerConfig& config,
                          const std::optional<models::PublicNames>& names,
                          const std::string& ours) {
  return names ? models::public_views(config, *names, {{ours, at::empty({0})}}).at(0).first : ours;
}

// The rows of each table of the vocabulary in the file, by trestle's names.
std::map<std::string, std::int64_t> rows_of_tables(const models::TransformerConfig& config,
                                                   const StoredTensors& in_file) {
  const auto names = names_in(in_file);
  std::map<std::string, std::int64_t> rows;
  for (const char* const ours : {"embed.tokens", "head.weight"}) {
    const std::string public_name = name_of_table(config, names, ours);
    for (const checkpoint::StoredTensor& stored : in_file) {
      const std::string name =
          names ? models::canonical_name(config, *names, stored.name) : stored.name;
      if (name == public_name && stored.shape.size() == 2 && stored.shape[1] == config.width)
        rows[ours] = stored.shape[0];
    }
  }
  return rows;
}

// A tied model has no use for the file's head, which should be its table of tokens. With `slices`
// the rows of this rank are compared.
void refuse_other_head(const NamedTensors& ours, const std::filesystem::path& file,
                       const StoredTensors& in_file, const nn::ParameterSlices& slices) {
  const auto is_head = [](const auto& tensor) { return tensor.name == "lm_head.weight"; };
  const auto stored = std::ranges::find_if(in_file, is_head);
  const auto table =
      std::ranges::find_if(ours, [](const auto& one) { return one.first == "embed.tokens"; });
  if (stored == in_file.end() || table == ours.end()) return;  // the table may be another stage's
  const at::Tensor& tokens = table->second;
  const auto slice = slices.find("embed.tokens");
  std::vector<std::int64_t> shape = stored->shape;
  checkpoint::LoadOptions options{.strict = false,
                                  .rename = [](const std::string& name) { return name; }};
  if (slice != slices.end() && shape.size() == 2) {
    const std::int64_t begin = slice->second.ranges[0].begin;
    shape[0] = std::clamp<std::int64_t>(shape[0] - begin, 0, tokens.size(0));
    if (shape[0] == 0) return;
    options.boxes[0] = {.offset = {begin, 0}, .whole = stored->shape};
  }
  const at::Tensor head = at::empty(shape, tokens.options().requires_grad(false));
  checkpoint::load_weights({{stored->name, head}}, file, options);
  const at::NoGradGuard no_grad;
  if (head.dim() == 2 && head.size(1) == tokens.size(1) && head.size(0) <= tokens.size(0) &&
      at::equal(head, tokens.narrow(0, 0, head.size(0))))
    return;
  throw FormatError(
      "'lm_head.weight' is not the table of tokens, to which the config ties the head",
      {.file = file.string(),
       .hint = "Set \"tie_word_embeddings\": false in config.json (tied = \"no\" in "
               "[transformer]) to use the file's head."});
}

// Reads rows of the file's tables.
models::RowsOfTable rows_in(const models::TransformerConfig& config,
                            const std::filesystem::path& file, const StoredTensors& in_file) {
  const auto names = names_in(in_file);
  return [=, rows = rows_of_tables(config, in_file)](const std::string& table, std::int64_t first,
                                                     std::int64_t count, at::ScalarType type) {
    const at::Tensor found = at::empty({count, config.width}, type);
    checkpoint::LoadOptions options{.strict = false, .rename = [&](const std::string& name) {
                                      return names ? models::canonical_name(config, *names, name)
                                                   : name;
                                    }};
    options.boxes[0] = {.offset = {first, 0}, .whole = {rows.at(table), config.width}};
    checkpoint::load_weights({{name_of_table(config, names, table), found}}, file, options);
    return found;
  };
}

checkpoint::LoadReport load_rows(const models::TransformerConfig& config, const NamedTensors& ours,
                                 const std::filesystem::path& file, const StoredTensors& in_file,
                                 checkpoint::LoadOptions options,
                                 const nn::ParameterSlices& slices) {
  if (const auto names = names_in(in_file)) {
    options.rename = [&](const std::string& name) {
      return models::canonical_name(config, *names, name);
    };
    checkpoint::LoadReport report =
        load_boxes(models::public_boxes(config, *names, ours, slices), file, options);
    report.names = *names == models::PublicNames::Gguf ? "llama.cpp's" : "Hugging Face's";
    if (*names == models::PublicNames::Gguf) models::rotary_rows_from_gguf(config, ours, slices);
    if (config.tied_head) refuse_other_head(ours, file, in_file, slices);
    return report;
  }
  const bool has_adapters =
      std::any_of(in_file.begin(), in_file.end(),
                  [](const checkpoint::StoredTensor& one) { return is_adapter(one.name); });
  auto into = models::own_boxes(config, ours, slices);
  if (!has_adapters) std::erase_if(into, [](const auto& one) { return is_adapter(one.name); });
  return load_boxes(into, file, options);
}

checkpoint::LoadReport load_exact(const models::TransformerConfig& config, const NamedTensors& ours,
                                  const std::filesystem::path& file, const StoredTensors& in_file,
                                  const checkpoint::LoadOptions& options, NewTokens new_tokens,
                                  const nn::ParameterSlices& slices) {
  if (new_tokens == NewTokens::Refused)
    return load_rows(config, ours, file, in_file, options, slices);
  const auto rows = rows_of_tables(config, in_file);
  models::TransformerConfig old = config;
  if (const auto found = rows.find("embed.tokens"); found != rows.end())
    old.vocabulary = std::min(found->second, config.vocabulary);
  const auto report = load_rows(old, ours, file, in_file, options, slices);
  if (old.vocabulary == config.vocabulary) return report;
  NamedTensors grown = ours;  // the tables that the file has
  std::erase_if(grown, [&](const auto& one) { return !rows.contains(one.first); });
  if (slices.empty())
    models::fill_new_rows(config, grown, old.vocabulary);
  else
    models::fill_new_rows(config, grown, old.vocabulary, slices, rows_in(config, file, in_file));
  return report;
}

}  // namespace

checkpoint::LoadReport load_boxes(const std::vector<models::PublicBox>& boxes,
                                  const std::filesystem::path& file,
                                  checkpoint::LoadOptions options) {
  NamedTensors into;
  for (const models::PublicBox& box : boxes) {
    if (!box.offset.empty())
      options.boxes[into.size()] = {.offset = box.offset, .whole = box.whole};
    into.emplace_back(box.name, box.view);
  }
  return checkpoint::load_weights(into, file, options);
}

std::int64_t tokens_of_weights(const models::TransformerConfig& config,
                               const std::filesystem::path& file) {
  const auto rows = rows_of_tables(config, checkpoint::list_weights(file));
  const auto found = rows.find("embed.tokens");
  return found == rows.end() ? 0 : found->second;
}

checkpoint::LoadReport load_transformer_weights(const models::TransformerConfig& config,
                                                const NamedTensors& ours,
                                                const std::filesystem::path& file,
                                                const checkpoint::LoadOptions& options,
                                                NewTokens new_tokens,
                                                const nn::ParameterSlices& slices) {
  const StoredTensors in_file = checkpoint::list_weights(file);
  if (has_scales(in_file))
    return load_exact(config, ours, file, in_file, options, new_tokens, slices);
  ExactMatrices exact(ours, slices);
  const checkpoint::LoadReport report =
      load_exact(config, exact.tensors(), file, in_file, options, new_tokens, exact.slices());
  exact.round();
  return report;
}

}  // namespace trestle::train
