#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/random.h"
#include "trestle/base/text.h"

// A small mutation fuzzer that runs as an ordinary, deterministic test. For any bytes a reader may
// only return or throw trestle::Error. Under the sanitizers it must not access invalid memory
// either.
//
//   TEST(Fuzz, Idx) {
//     const auto result = fuzz::run({seed_file_1, seed_file_2}, [](std::string_view bytes) {
//       read_idx(bytes);
//     });
//     EXPECT_GT(result.accepted, 0);
//   }
//
// The environment variable TRESTLE_FUZZ_FACTOR multiplies the iterations, for a long run by hand.
namespace trestle::fuzz {

struct Options {
  int iterations = 20'000;
  std::uint64_t seed = 1;
  std::size_t longest = 4096;  // mutated inputs are cut here
};

struct Result {
  int accepted = 0;  // inputs without an exception
  int refused = 0;   // inputs with a trestle::Error
};

// The input as a C string literal, to copy into a test.
inline std::string literal(std::string_view bytes) {
  constexpr char digit_characters[] = "01234567";
  std::string out = "\"";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += {'\\', digit_characters[byte >> 6], digit_characters[byte >> 3 & 7],
              digit_characters[byte & 7]};
    }
  }
  return out + "\"";
}

class Mutator {
 public:
  Mutator(const std::vector<std::string>& seeds, const Options& options)
      : seeds_(seeds), longest_(options.longest), random_(options.seed) {}

  std::string next() {
    std::string bytes = seeds_[below(seeds_.size())];
    for (std::size_t times = 1 + below(6); times > 0; --times) mutate(&bytes);
    bytes.resize(std::min(bytes.size(), longest_));
    return bytes;
  }

 private:
  // In [0, limit); 0 if limit is 0.
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_.below(limit); }

  struct Range {
    std::size_t begin = 0;
    std::size_t size = 0;
  };
  Range range(const std::string& bytes, std::size_t most) {
    const std::size_t begin = below(bytes.size() + 1);
    return {begin, below(std::min(most, bytes.size() - begin) + 1)};
  }

  void mutate(std::string* bytes) {
    constexpr std::size_t most_copied = 64;
    const std::size_t at = below(bytes->size());
    switch (below(9)) {
      case 0:  // flip one bit
        if (!bytes->empty()) (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << below(8)));
        return;
      case 1:  // replace a byte
        if (!bytes->empty()) (*bytes)[at] = static_cast<char>(below(256));
        return;
      case 2: {  // insert a byte that occurs in the seeds
        const std::string& other = seeds_[below(seeds_.size())];
        if (!other.empty()) bytes->insert(at, 1, other[below(other.size())]);
        return;
      }
      case 3: {  // remove a range
        const Range piece = range(*bytes, most_copied);
        bytes->erase(piece.begin, piece.size);
        return;
      }
      case 4: {  // duplicate a range
        const Range piece = range(*bytes, most_copied);
        bytes->insert(at, bytes->substr(piece.begin, piece.size));
        return;
      }
      case 5: {  // insert a range of another seed
        const std::string& other = seeds_[below(seeds_.size())];
        const Range piece = range(other, most_copied);
        bytes->insert(at, other.substr(piece.begin, piece.size));
        return;
      }
      case 6:  // truncate
        bytes->resize(at);
        return;
      case 7:
        return text_number(bytes);
      default:
        return binary_number(bytes, at);
    }
  }

  // Replaces digits by a number at the limit of its type.
  void text_number(std::string* bytes) {
    constexpr std::string_view numbers[] = {
        "0",          "-1",         "1",          "255",
        "256",        "32767",      "32768",      "65536",
        "2147483647", "2147483648", "4294967296", "9223372036854775807",
        "1e308",      "nan",        "00",         "18446744073709551616"};
    constexpr std::string_view digit_characters = "0123456789";
    const std::size_t begin = bytes->find_first_of(digit_characters, below(bytes->size()));
    if (begin == std::string::npos) return;
    const std::size_t end =
        std::min(bytes->find_first_not_of(digit_characters, begin), bytes->size());
    bytes->replace(begin, end - begin, numbers[below(std::size(numbers))]);
  }

  // The same for binary formats: one, two, four or eight bytes, in either byte order.
  void binary_number(std::string* bytes, std::size_t at) {
    constexpr std::uint64_t numbers[] = {0,          1,          0x7f,       0x80,
                                         0xff,       0x7fff,     0x8000,     0xffff,
                                         0x7fffffff, 0x80000000, 0xffffffff, 0x7fffffffffffffff};
    const std::size_t size = std::size_t{1} << below(4);
    const std::uint64_t number = numbers[below(std::size(numbers))];
    const bool big_endian = below(2) == 1;
    for (std::size_t i = 0; i < size && at + i < bytes->size(); ++i) {
      const std::size_t shift = 8 * (big_endian ? size - 1 - i : i);
      (*bytes)[at + i] = static_cast<char>(number >> shift & 0xff);
    }
  }

  const std::vector<std::string>& seeds_;
  std::size_t longest_;
  Random random_;
};

// Runs `target` on the seeds and then on mutations of them. An exception other than trestle::Error
// fails the test with the input, and ends the run.
inline Result run(const std::vector<std::string>& seeds,
                  const std::function<void(std::string_view)>& target,
                  const Options& options = {}) {
  const char* factor = std::getenv("TRESTLE_FUZZ_FACTOR");
  const long iterations = options.iterations * (factor == nullptr ? 1L : std::atol(factor));
  Mutator mutator(seeds, options);
  Result result;
  const auto once = [&](const std::string& bytes) {
    try {
      target(bytes);
      ++result.accepted;
      return true;
    } catch (const Error&) {
      ++result.refused;
      return true;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "unexpected exception: " << error.what() << "\ninput: " << literal(bytes);
    } catch (...) {
      ADD_FAILURE() << "unexpected exception of an unknown type\ninput: " << literal(bytes);
    }
    return false;
  };
  for (const std::string& seed : seeds) {
    if (!once(seed)) return result;
  }
  for (long i = 0; i < iterations; ++i) {
    if (!once(mutator.next())) return result;
  }
  return result;
}

}  // namespace trestle::fuzz
