#include "trestle/tokens/tokenizers/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <exception>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/tokens/tokenizers/added_tokens.h"
#include "trestle/tokens/tokenizers/content_hash.h"
#include "trestle/tokens/tokenizers/sentencepiece_check.h"
#include "trestle/tokens/tokenizers/valid_utf8.h"

namespace trestle::tokens {
namespace {

constexpr std::string_view space_mark = "\xE2\x96\x81";  // U+2581 stands for a space

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view content, std::string file) : file_(std::move(file)) {
    load(content);
    std::vector<AddedToken> controls;
    std::vector<std::string> spellings;
    for (int id = 0; id < model_.GetPieceSize(); ++id) {
      bytes_.push_back(bytes_of_piece(id));
      if (!model_.IsControl(id)) continue;
      controls.push_back({.id = id, .text = model_.IdToPiece(id), .special = true});
      spellings.push_back(model_.IdToPiece(id));
    }
    controls_ = std::make_unique<AddedTokens>(std::move(controls), spellings);
    ContentHash hash;
    hash.add("SentencePiece");
    hash.add(model_.serialized_model_proto());
    hash_ = hash.digits();
  }

  std::vector<Id> encode(std::string_view input, Specials specials) const override {
    std::string storage;
    const std::string_view valid = valid_utf8(input, &storage);
    std::vector<Id> ids;
    if (specials == Specials::AsText) {
      append(valid, &ids);
      return ids;
    }
    std::vector<AddedTokens::Part> parts;
    controls_->split(valid, specials, &parts);
    for (const AddedTokens::Part& part : parts) {
      if (part.id >= 0) {
        ids.push_back(part.id);
      } else {
        append(part.text, &ids);
      }
    }
    return ids;
  }

  std::string_view bytes(Id id) const override {
    check(id);
    return bytes_[static_cast<std::size_t>(id)];
  }

  Id size() const override { return static_cast<Id>(bytes_.size()); }
  bool is_special(Id id) const override { return id >= 0 && id < size() && model_.IsControl(id); }
  std::string hash() const override { return hash_; }

  Id find(std::string_view spelling) const override {
    std::string piece;
    for (const char byte : spelling) {
      if (byte == ' ') {
        piece += space_mark;
      } else {
        piece += byte;
      }
    }
    const int id = model_.PieceToId(piece);
    return model_.IsUnknown(id) && model_.IdToPiece(id) != piece ? -1 : id;
  }

  std::string decode(std::span<const Id> ids) const override {
    for (const Id id : ids) check(id);
    std::string out;
    const auto status = model_.Decode(std::vector<int>(ids.begin(), ids.end()), &out);
    if (!status.ok()) throw UsageError(status.ToString(), {.file = file_});
    return out;
  }

 private:
  // The library throws exceptions of its dictionary, which have no base of ours.
  void load(std::string_view content) {
    check_sentencepiece(content, file_);
    std::string problem;
    try {
      const auto status = model_.LoadFromSerializedProto(content);
      if (status.ok() && model_.GetPieceSize() > 0) return;
      problem = status.ToString();
    } catch (const std::exception& error) {
      problem = error.what();
    }
    throw FormatError(text("not a SentencePiece model: ", problem), {.file = file_});
  }

  void check(Id id) const {
    if (id >= 0 && id < size()) return;
    throw UsageError(
        text("token id ", id, " is out of range; the ids of this tokenizer are 0 to ", size() - 1),
        {.file = file_});
  }

  void append(std::string_view input, std::vector<Id>* ids) const {
    std::vector<int> found;
    const auto status = model_.Encode(input, &found);
    if (!status.ok()) throw UsageError(status.ToString(), {.file = file_});
    ids->insert(ids->end(), found.begin(), found.end());
  }

  std::string bytes_of_piece(int id) const {
    if (model_.IsControl(id)) return "";
    if (model_.IsUnknown(id)) return " \xE2\x81\x87 ";  // the package decodes it to this
    const std::string& piece = model_.IdToPiece(id);
    if (model_.IsByte(id)) {  // "<0x0A>"
      constexpr std::size_t digits_at = 3;
      constexpr int base = 16;
      return {static_cast<char>(std::stoi(piece.substr(digits_at, 2), nullptr, base))};
    }
    std::string out;
    for (std::size_t at = 0; at < piece.size();) {
      if (std::string_view(piece).substr(at).starts_with(space_mark)) {
        out += ' ';
        at += space_mark.size();
      } else {
        out += piece[at++];
      }
    }
    return out;
  }

  std::string file_;
  sentencepiece::SentencePieceProcessor model_;
  std::vector<std::string> bytes_;
  std::unique_ptr<AddedTokens> controls_;
  std::string hash_;
};

}  // namespace

std::unique_ptr<Tokenizer> read_sentencepiece(const std::filesystem::path& path) {
  return parse_sentencepiece(read_text_file(path), path.string());
}

std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view content, const std::string& file) {
  return std::make_unique<SentencePieceTokenizer>(content, file);
}

}  // namespace trestle::tokens
