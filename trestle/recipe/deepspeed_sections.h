#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "trestle/recipe/deepspeed_keys.h"

// The sections of DeepSpeed's JSON. Inside of recipe.
namespace trestle::recipe::deepspeed {

// All bytes of a configuration. Throws UsageError where it is no file.
std::string read_bytes(const std::filesystem::path& path);

// The terms of a batch as the file has them.
struct Batch {
  std::optional<std::int64_t> train, micro, accumulate;
};

// Fills in the terms that are left out, or says which contradict each other.
void derive_batch(const Batch& given, Reading reading);

void read_file_object(const Json& json, Reading reading);  // the whole of it
void read_zero(const Json& json, Reading reading);         // "zero_optimization"

// { "type": ..., "params": { ... } }
struct Typed {
  std::string type;
  Json params;
};

// Such an object, which may have other keys too. Nothing where it has no type.
std::optional<Typed> read_typed(const Json& json, const std::string& path, Keys others,
                                Reading reading);

// "optimizer" and "scheduler"; the optimizer first, whose rate a schedule may go by.
void read_optimizer(const Json& json, Reading reading);
void read_scheduler(const Json& json, Reading reading);

}  // namespace trestle::recipe::deepspeed
