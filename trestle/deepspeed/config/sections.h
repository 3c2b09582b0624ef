#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "trestle/deepspeed/config/keys.h"

// The sections of DeepSpeed's JSON. Not installed.
namespace trestle::deepspeed {

// The whole content of a configuration. Throws UsageError if it is not a file.
std::string read_bytes(const std::filesystem::path& path);

// The batch sizes in the file.
struct Batch {
  std::optional<std::int64_t> train, micro, accumulate;
};

// Computes the missing batch sizes, or reports contradictions.
void derive_batch(const Batch& given, Reading reading);

void read_file_object(const Json& json, Reading reading);  // the whole file
void read_zero(const Json& json, Reading reading);         // "zero_optimization"

// { "type": ..., "params": { ... } }
struct Typed {
  std::string type;
  Json params;
};

// Reads such an object; `others` are its other allowed keys. Nothing if it has no type.
std::optional<Typed> read_typed(const Json& json, const std::string& path, Keys others,
                                Reading reading);

// "optimizer" and "scheduler". Read the optimizer first, because a schedule may use its rate.
void read_optimizer(const Json& json, Reading reading);
void read_scheduler(const Json& json, Reading reading);

}  // namespace trestle::deepspeed
