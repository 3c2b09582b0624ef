#pragma once

#include <string>
#include <vector>

#include "trestle/tokens/tokenizer.h"
#include "trestle/tokens/tokenizers/merge_table.h"

namespace trestle::tokens {

// A token of the vocabulary.
struct BpeToken {
  std::string bytes = {};  // empty: the id has no token
  bool word = false;  // whether merges may make it out of bytes; an added token's spelling is none
};

// A token that is found in the text before words are. The flags are those of Hugging Face's
// AddedToken.
struct AddedToken {
  Id id = 0;
  std::string text = {};
  bool special = false;      // a control token: Specials::AsText takes it as any other characters
  bool single_word = false;  // only between characters that are not of a word
  bool lstrip = false;       // with all white space before it
  bool rstrip = false;       // with all white space after it
  bool normalized = false;   // found after normalization instead of before
};

// One step of dividing a text into words. Each stage divides the results of the stage before it.
struct SplitStage {
  enum class Keep {
    Everything,     // the matches of the pattern, and what is between them
    Matches,        // what is between matches is dropped
    BetweenMatches  // matches are dropped
  };
  std::string pattern = {};  // a regular expression as in tokenizer.json; empty: no division
  Keep keep = Keep::Everything;
  bool add_prefix_space = false;  // a space goes before a text that has none
};

// Unicode's normalization forms.
enum class Normalization { Nfc, Nfd, Nfkc, Nfkd };

// Everything that a byte-level tokenizer consists of, whichever files it came from.
struct BpeParts {
  std::string source = {};  // the file, for messages
  std::vector<BpeToken> tokens = {};
  std::vector<Merge> merges = {};  // in the order of their ranks
  std::vector<AddedToken> added = {};
  std::vector<SplitStage> stages = {};
  std::vector<Normalization> normalizations = {};
  std::vector<Id> prefix = {};  // before each text
  std::vector<Id> suffix = {};  // after each text
  Id unknown = -1;              // for bytes without a token; -1: they are dropped
  bool fuse_unknown = false;    // several unknown bytes in a row are one token
  bool ignore_merges = false;   // a word that is a token stays whole, whatever the merges
};

}  // namespace trestle::tokens
