#include "trestle/models/transformer/public_weights.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "trestle/models/transformer/vocabulary.h"

namespace trestle::models {

namespace {

using Style = TransformerConfig::Style;

enum class Layout { Same, Transposed };

// A part of one of our parameters' rows under a public name.
struct PublicPart {
  std::string name;
  std::int64_t rows = 0;  // 0 = all
  Layout layout = Layout::Same;
  std::int64_t rotary_head = 0;  // rows of a head in llama.cpp's order; 0 = our order
};

// The row of a GGUF file for our row of queries or keys: the pairs of a rotation lie next to each
// other.
std::int64_t gguf_row(std::int64_t row, std::int64_t head_size) {
  const std::int64_t half = head_size / 2, inside = row % head_size;
  return row - inside + (inside < half ? 2 * inside : 2 * (inside - half) + 1);
}

struct BlockNames {
  const char* prefix;  // before the block's number
  const char* attention_norm;
  std::vector<const char*> qkv;
  const char* out;
  const char* mlp_norm;
  std::vector<const char*> up;
  const char* down;
};

const BlockNames& block_names(Style style, PublicNames names) {
  static const BlockNames gpt2{"h.",   "ln_1",       {"attn.c_attn"}, "attn.c_proj",
                               "ln_2", {"mlp.c_fc"}, "mlp.c_proj"};
  static const BlockNames llama{"model.layers.",
                                "input_layernorm",
                                {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                                "self_attn.o_proj",
                                "post_attention_layernorm",
                                {"mlp.gate_proj", "mlp.up_proj"},
                                "mlp.down_proj"};
  static const BlockNames gguf_gpt2{"blk.",     "attn_norm", {"attn_qkv"}, "attn_output",
                                    "ffn_norm", {"ffn_up"},  "ffn_down"};
  static const BlockNames gguf_llama{"blk.",        "attn_norm", {"attn_q", "attn_k", "attn_v"},
                                     "attn_output", "ffn_norm",  {"ffn_gate", "ffn_up"},
                                     "ffn_down"};
  if (style == Style::Gpt2) return names == PublicNames::Gguf ? gguf_gpt2 : gpt2;
  return names == PublicNames::Gguf ? gguf_llama : llama;
}

// "blocks.12.attention.qkv.weight" -> "12", "attention.qkv", "weight".
struct BlockParameter {
  std::string number, module, leaf;
};
std::optional<BlockParameter> in_block(std::string_view name) {
  constexpr std::string_view prefix = "blocks.";
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  const auto first = name.find('.'), last = name.rfind('.');
  if (first == std::string_view::npos || first == last) return std::nullopt;
  return BlockParameter{std::string(name.substr(0, first)),
                        std::string(name.substr(first + 1, last - first - 1)),
                        std::string(name.substr(last + 1))};
}

std::vector<PublicPart> parts_of_block(const TransformerConfig& config, PublicNames names,
                                       const BlockParameter& parameter) {
  const BlockNames& all = block_names(config.style, names);
  const std::string before = all.prefix + parameter.number + ".";
  const auto named = [&](const char* module, std::int64_t rows = 0) {
    const bool is_product =
        parameter.leaf == "weight" && module != all.attention_norm && module != all.mlp_norm;
    const bool transposed =
        is_product && config.style == Style::Gpt2 && names == PublicNames::HuggingFace;
    return PublicPart{before + module + "." + parameter.leaf, rows,
                      transposed ? Layout::Transposed : Layout::Same};
  };
  if (parameter.module == "attention_norm") return {named(all.attention_norm)};
  if (parameter.module == "mlp_norm") return {named(all.mlp_norm)};
  if (parameter.module == "attention.out") return {named(all.out)};
  if (parameter.module == "mlp.down") return {named(all.down)};
  if (parameter.module == "mlp.up") return {named(all.up.at(0))};
  if (parameter.module == "mlp.gate_up")
    return {named(all.up.at(0), config.mlp), named(all.up.at(1), config.mlp)};
  if (parameter.module != "attention.qkv") return {};
  if (all.qkv.size() == 1) return {named(all.qkv[0])};
  const std::int64_t kv = config.kv_heads * config.head_size;
  std::vector<PublicPart> parts = {named(all.qkv[0], config.heads * config.head_size),
                                   named(all.qkv[1], kv), named(all.qkv[2], kv)};
  if (names == PublicNames::Gguf) parts[0].rotary_head = parts[1].rotary_head = config.head_size;
  return parts;
}

std::vector<PublicPart> parts_of(const TransformerConfig& config, PublicNames names,
                                 std::string_view ours) {
  if (const auto inside = in_block(ours)) return parts_of_block(config, names, *inside);
  const bool gpt2 = config.style == Style::Gpt2, gguf = names == PublicNames::Gguf;
  if (ours == "embed.tokens")
    return {{gguf ? "token_embd.weight" : gpt2 ? "wte.weight" : "model.embed_tokens.weight"}};
  if (ours == "embed.positions") return {{gguf ? "position_embd.weight" : "wpe.weight"}};
  if (ours == "head.weight") return {{gguf ? "output.weight" : "lm_head.weight"}};
  if (ours.starts_with("norm."))
    return {{std::string(gguf   ? "output_norm."
                         : gpt2 ? "ln_f."
                                : "model.norm.") +
             std::string(ours.substr(5))}};
  return {};
}

// One tensor of ours under its public names: all of it, or a rank's slice.
class Boxes {
 public:
  Boxes(const TransformerConfig& config, const nn::ParameterSlices& slices)
      : vocabulary_(config.vocabulary), slices_(slices) {}

  void add(const std::string& name, const at::Tensor& tensor, std::vector<PublicPart> parts) {
    const auto found = slices_.find(name);
    if (found == slices_.end()) return add_whole(name, tensor, std::move(parts));
    nn::ParameterSlice slice = found->second;
    if (is_vocabulary_table(name)) slice = true_rows(slice);
    std::int64_t first = 0;  // of the part, in the whole tensor
    for (PublicPart& part : parts) {
      if (part.rows == 0) part.rows = slice.whole[0];
      if (slice.dimension == 0)
        add_rows(tensor, slice, part, first);
      else
        add(part, tensor.narrow(0, first, part.rows), {0, slice.ranges[0].begin},
            {part.rows, slice.whole[1]});
      first += part.rows;
    }
  }

  std::vector<PublicBox> take() { return std::move(boxes_); }

 private:
  // Padded rows are in no file.
  nn::ParameterSlice true_rows(nn::ParameterSlice slice) const {
    slice.whole[0] = std::min(slice.whole[0], vocabulary_);
    for (nn::IndexRange& range : slice.ranges)
      range.size = std::clamp<std::int64_t>(vocabulary_ - range.begin, 0, range.size);
    return slice;
  }

  void add_whole(const std::string& name, const at::Tensor& tensor, std::vector<PublicPart> parts) {
    const at::Tensor all = first_rows({{name, tensor}}, vocabulary_)[0].second.detach();
    std::int64_t first = 0;
    for (const PublicPart& part : parts) {
      add(part, part.rows > 0 ? all.narrow(0, first, part.rows) : all, {}, {});
      first += part.rows;
    }
  }

  // The rows of a part in the slice's ranges.
  void add_rows(const at::Tensor& tensor, const nn::ParameterSlice& slice, const PublicPart& part,
                std::int64_t first) {
    std::int64_t own = 0;  // of the range, in this rank's tensor
    for (const nn::IndexRange& range : slice.ranges) {
      const std::int64_t begin = std::max(range.begin, first);
      const std::int64_t end = std::min(range.begin + range.size, first + part.rows);
      // rotary_rows_from_gguf() reorders whole heads. The rows of a part of a head are boxes.
      const bool one_by_one = part.rotary_head > 0 && range.size % part.rotary_head != 0;
      const std::int64_t step = one_by_one ? 1 : std::max<std::int64_t>(end - begin, 1);
      for (std::int64_t row = begin; row < end; row += step) {
        std::vector<std::int64_t> offset(slice.whole.size(), 0), whole = slice.whole;
        offset[0] = one_by_one ? gguf_row(row - first, part.rotary_head) : row - first;
        whole[0] = part.rows;
        add(part, tensor.narrow(0, own + row - range.begin, step), offset, whole);
      }
      own += range.size;
    }
  }

  void add(const PublicPart& part, const at::Tensor& view, std::vector<std::int64_t> offset,
           std::vector<std::int64_t> whole) {
    const bool turned = part.layout == Layout::Transposed;
    if (turned && offset.size() == 2) {
      std::swap(offset[0], offset[1]);
      std::swap(whole[0], whole[1]);
    }
    boxes_.push_back({part.name, turned ? view.detach().t() : view.detach(), std::move(offset),
                      std::move(whole)});
  }

  std::int64_t vocabulary_;
  const nn::ParameterSlices& slices_;
  std::vector<PublicBox> boxes_;
};

}  // namespace

std::vector<PublicBox> public_boxes(const TransformerConfig& config, PublicNames names,
                                    const NamedTensors& ours, const nn::ParameterSlices& slices) {
  Boxes boxes(config, slices);
  for (const auto& [name, tensor] : ours) boxes.add(name, tensor, parts_of(config, names, name));
  return boxes.take();
}

std::vector<PublicBox> own_boxes(const TransformerConfig& config, const NamedTensors& ours,
                                 const nn::ParameterSlices& slices) {
  Boxes boxes(config, slices);
  for (const auto& [name, tensor] : ours) boxes.add(name, tensor, {{name}});
  return boxes.take();
}

NamedTensors public_views(const TransformerConfig& config, PublicNames names,
                          const NamedTensors& ours) {
  NamedTensors views;
  for (PublicBox& box : public_boxes(config, names, ours, {}))
    views.emplace_back(std::move(box.name), std::move(box.view));
  return views;
}

std::string public_module(const TransformerConfig& config, const std::string& projection,
                          const std::string& part) {
  const auto parts = parts_of(config, PublicNames::HuggingFace, projection + ".weight");
  std::size_t number = 0;
  if (part == "k" || part == "up") number = 1;
  if (part == "v") number = 2;
  const std::string& name = parts.at(parts.size() == 1 ? 0 : number).name;
  return name.substr(0, name.rfind('.'));
}

std::string canonical_name(const TransformerConfig& config, PublicNames names,
                           std::string_view in_file) {
  if (config.style == Style::Gpt2 && in_file.starts_with("transformer."))
    in_file.remove_prefix(std::string_view("transformer.").size());
  for (const char* mask :
       {".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq", "rope_freqs.weight"})
    if (in_file.ends_with(mask)) return "";
  const char* const head = names == PublicNames::Gguf ? "output.weight" : "lm_head.weight";
  if (config.tied_head && in_file == head) return "";
  return std::string(in_file);
}

void rotary_rows_from_gguf(const TransformerConfig& config, const NamedTensors& ours,
                           const nn::ParameterSlices& slices) {
  if (config.style == Style::Gpt2) return;
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : ours) {
    const auto inside = in_block(name);
    if (!inside || inside->module != "attention.qkv") continue;
    const auto slice = slices.find(name);
    std::int64_t first = 0, part = 0;
    for (const std::int64_t heads : {config.heads, config.kv_heads}) {
      const std::int64_t count = slice == slices.end()
                                     ? heads * config.head_size
                                     : slice->second.ranges[static_cast<std::size_t>(part)].size;
      const at::Tensor rows = tensor.detach().narrow(0, first, count);
      first += count;
      ++part;
      if (count % config.head_size != 0) continue;  // public_boxes() has read row by row
      const at::Tensor pairs =
          rows.unflatten(0, {count / config.head_size, config.head_size / 2, 2});
      rows.copy_(pairs.transpose(1, 2).reshape(rows.sizes()));
    }
  }
}

}  // namespace trestle::models
