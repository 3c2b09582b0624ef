#pragma once

#include <string>

#include "trestle/plan/machine/machine.h"
#include "trestle/plan/machine/toml_problems.h"

// The sections of a machine file that `trestle calibrate` adds. Inside of plan/machine. Not
// installed.
namespace trestle::plan {

// Whether it is one of them: [measured_on], [optimizer], [fixed], [[product]], [[message]] and
// [[copy]].
bool is_calibration_section(const std::string& section);

// Reads one of them. check_calibration() follows once all are read.
void read_calibration(const std::string& section, const toml::node& node, Machine* machine,
                      TomlProblems* problems);

// [measured_on] counts the tables of the file: one that was cut off has fewer.
void check_calibration(const toml::table& root, const Machine& machine, TomlProblems* problems);

// [measured_on], which stands before all sections that may be left out: a file that was cut off
// does not pass for a profile. Empty for a machine that was not measured.
std::string measured_on_toml(const Machine& machine);
// The other sections.
std::string calibration_toml(const Machine& machine);

}  // namespace trestle::plan
