#include "trestle/plan/machine/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle::plan {
namespace {

using testing::HasSubstr;

std::string shipped_text() {
  return read_text_file(std::string(TRESTLE_SOURCE_DIR) + "/machines/a100-8-per-node.toml");
}

// The shipped file with one text replaced.
std::string changed(const std::string& from, const std::string& to) {
  std::string words = shipped_text();
  const std::size_t at = words.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return words.replace(at, from.size(), to);
}

std::string refusal_of(const std::string& words) {
  try {
    parse_machine(words, "my.toml");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Machines, AreWrittenAndReadAgain) {
  Machine machine = parse_machine(shipped_text(), "my.toml");
  machine.price_per_hour = Figure{2.5, Origin::Assumed, "a \"quoted\" price"};
  machine.blocks.push_back({.hidden = 64,
                            .heads = 2,
                            .sequence = 8,
                            .micro_batch = 2,
                            .tensor = 4,
                            .seconds = 0.25,
                            .origin = Origin::Measured,
                            .from = "here"});
  const std::string words = to_toml(machine);
  EXPECT_EQ(to_toml(parse_machine(words, "again.toml")), words);
  EXPECT_THAT(words, HasSubstr("per_hour = { value = 2.5, is = \"assumed\""));
}

TEST(Machines, EveryFigureNamesItsSource) {
  const Machine machine = parse_machine(shipped_text(), "my.toml");
  EXPECT_EQ(machine.devices_per_node, 8);
  EXPECT_EQ(machine.memory.value, 80.0 * 1024 * 1024 * 1024);
  EXPECT_EQ(machine.memory.origin, Origin::Assumed);
  EXPECT_EQ(machine.transformer.score_passes.origin, Origin::Simulated);
  EXPECT_EQ(machine.between.bandwidth.value, 100e9);
  EXPECT_FALSE(machine.price_per_hour);
  ASSERT_TRUE(machine.peak_fp32 && machine.host);
  EXPECT_EQ(machine.peak_fp32->value, 19.5e12);
  EXPECT_EQ(machine.host->memory_bandwidth.value, 409.6e9);
}

// A file may leave out the host, but not a part of it.
TEST(Machines, HostIsWholeOrMissing) {
  std::string words = shipped_text();
  const std::size_t begin = words.find("[host]"), end = words.find("[[all_reduce]]");
  ASSERT_LT(begin, end);
  const Machine without = parse_machine(words.replace(begin, end - begin, ""), "my.toml");
  EXPECT_FALSE(without.host);
  EXPECT_EQ(to_toml(parse_machine(to_toml(without), "again.toml")), to_toml(without));
  EXPECT_THAT(refusal_of(changed("memory = { value = \"2TB\"", "memory = { valu = \"2TB\"")),
              HasSubstr("unknown key 'valu' in 'memory' in [host]"));
  const std::string figure =
      "bandwidth = { value = \"1GB/s\", is = \"assumed\", from = \"a guess\" }\n";
  EXPECT_THAT(refusal_of(to_toml(without) + "\n[host]\n" + figure),
              AllOf(HasSubstr("'memory_bandwidth' is missing in [host]"),
                    HasSubstr("'memory' is missing in [host]")));
}

TEST(Machines, RefuseBadFilesByKeyAndLine) {
  EXPECT_THAT(refusal_of(changed("[between]", "[betwen]")),
              AllOf(HasSubstr("unknown section [betwen]; did you mean 'between'?"),
                    HasSubstr("'bandwidth' is missing in [between]")));
  EXPECT_THAT(refusal_of(changed("reserved =", "reserve =")),
              AllOf(HasSubstr("my.toml:12: unknown key 'reserve' in [device]; did you mean"),
                    HasSubstr("'reserved' is missing in [device]")));
  EXPECT_THAT(refusal_of(changed("value = 1.0, is", "value = 1.5, is")),
              HasSubstr("'matrix_efficiency' in [transformer] is 1.5, but must lie from"));
  EXPECT_THAT(refusal_of(changed("is = \"assumed\"", "is = \"guessed\"")),
              HasSubstr("'is' must be \"measured\", \"simulated\" or \"assumed\""));
  EXPECT_THAT(refusal_of(changed("\"80GiB\"", "\"80Gibi\"")), HasSubstr("my.toml:11: 'memory'"));
  EXPECT_THAT(refusal_of(changed("\"4GiB\"", "\"90GiB\"")), HasSubstr("leaves nothing"));
  EXPECT_THAT(refusal_of(changed("ranks = 2", "ranks = 4")), HasSubstr("two tables"));
  EXPECT_THAT(refusal_of(changed("bytes = [1048576, ", "bytes = [")),
              HasSubstr("has 19 sizes in 'bytes' and 20 times"));
  EXPECT_THAT(refusal_of(changed("bytes = [1048576", "bytes = [1048576000")),
              HasSubstr("must rise"));
  EXPECT_THAT(refusal_of(changed("devices_per_node = 8", "devices_per_node = 0")),
              HasSubstr("from 1 to 4096"));
  EXPECT_THAT(refusal_of(changed("from = \"the same\"", "from = \"\"")),
              HasSubstr("'from' must name"));
  EXPECT_THAT(refusal_of("[machine"), HasSubstr("my.toml:1: "));
  EXPECT_THAT(refusal_of(""), HasSubstr("the section [machine] is missing"));
}

// A name with an escape sequence would change the terminal that prints it.
TEST(Machines, NamesHaveNoControlCharacters) {
  const std::string name = "name = \"a100-8-per-node\"";
  for (const char* bad : {"\\u001b[31mred", "\\u0007", "two\\nlines", "\\u007f", "\\u009b1m"})
    EXPECT_THAT(refusal_of(changed(name, text("name = \"", bad, "\""))),
                AllOf(HasSubstr("my.toml:"),
                      HasSubstr("'name' in [machine] must have no control characters")))
        << bad;
  EXPECT_EQ(parse_machine(changed(name, "name = \"Rechner für ≥ 8 GPUs\""), "my.toml").name,
            "Rechner für ≥ 8 GPUs");
}

TEST(Machines, UnknownNamesListTheFoldersSearched) {
  try {
    read_machine("no-such-machine");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no such machine: there is no no-such-machine.toml in "));
    EXPECT_THAT(error.where().hint, HasSubstr("a100-8-per-node"));
  }
}

TEST(Machines, TextsOfSeveralLinesAreReadAgain) {
  Machine machine = parse_machine(shipped_text(), "my.toml");
  for (const std::string about :
       {"\nabc", "abc\n", "it's\n\"two\" lines\\", "with ''' in\nit", "a ''' b", "\n", "\r\nabc"}) {
    machine.about = about;
    EXPECT_EQ(parse_machine(to_toml(machine), "again.toml").about, about);
  }
}

}  // namespace
}  // namespace trestle::plan
