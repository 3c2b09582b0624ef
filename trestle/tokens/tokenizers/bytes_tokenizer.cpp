#include "trestle/tokens/tokenizers/bytes_tokenizer.h"

#include <array>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/tokens/tokenizers/content_hash.h"
#include "trestle/tokens/tokenizers/valid_utf8.h"

namespace trestle::tokens {
namespace {

class BytesTokenizer final : public Tokenizer {
 public:
  BytesTokenizer() {
    for (std::size_t i = 0; i < all_.size(); ++i) all_[i] = static_cast<char>(i);
  }

  std::vector<Id> encode(std::string_view text, Specials) const override {
    std::string storage;
    std::vector<Id> ids;
    const std::string_view valid = valid_utf8(text, &storage);
    ids.reserve(valid.size());
    for (const char byte : valid) ids.push_back(static_cast<unsigned char>(byte));
    return ids;
  }

  std::string_view bytes(Id id) const override {
    if (id < 0 || id >= size()) {
      throw UsageError(text("token id ", id, " is out of range; the ids of bytes are 0 to 255"));
    }
    return {&all_[static_cast<std::size_t>(id)], 1};
  }

  Id size() const override { return 256; }
  bool is_special(Id) const override { return false; }
  Id find(std::string_view spelling) const override {
    return spelling.size() == 1 ? static_cast<unsigned char>(spelling[0]) : -1;
  }
  std::string hash() const override {
    ContentHash hash;
    hash.add("bytes");
    return hash.digits();
  }

 private:
  std::array<char, 256> all_{};
};

}  // namespace

std::unique_ptr<Tokenizer> bytes_tokenizer() { return std::make_unique<BytesTokenizer>(); }

}  // namespace trestle::tokens
