#include "trestle/tokens/tokenizer.h"

#include <gtest/gtest.h>

namespace trestle::tokens {
namespace {

// One token for each letter: the base class concatenates the tokens' bytes.
class Letters : public Tokenizer {
 public:
  std::vector<Id> encode(std::string_view text, Specials) const override {
    return {text.begin(), text.end()};
  }
  std::string_view bytes(Id id) const override { return std::string_view(letters).substr(id, 1); }
  Id size() const override { return static_cast<Id>(letters.size()); }
  bool is_special(Id) const override { return false; }
  Id find(std::string_view) const override { return -1; }
  std::string hash() const override { return ""; }

 private:
  std::string letters = "abc";
};

TEST(Tokenizer, DecodesTheBytesOfItsTokens) {
  EXPECT_EQ(Letters().decode(std::vector<Id>{2, 0, 1, 1}), "cabb");
  EXPECT_EQ(Letters().decode({}), "");
}

}  // namespace
}  // namespace trestle::tokens
