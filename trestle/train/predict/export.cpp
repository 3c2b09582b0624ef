#include "trestle/train/predict/export.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/train/run_folder/run_folder.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

fs::path find_file(const ExportOptions& options) {
  if (fs::is_regular_file(options.from) || checkpoint::is_checkpoint(options.from))
    return options.from;
  return saved_weights(open_run_folder(options.from), options.which);
}

// The files of a run are refused: with other names, or from another epoch, the run could not be
// resumed.
bool is_of_a_run(const fs::path& file) {
  const fs::path folder = fs::absolute(file).parent_path();
  const bool beside_recipe = fs::exists(folder / "recipe.toml");
  return file.extension() == ".safetensors" &&
         (checkpoint::is_checkpoint(folder) ||
          (beside_recipe && file.filename() == "best.safetensors") ||
          (folder.filename() == "best" && fs::exists(folder.parent_path() / "recipe.toml")));
}

void refuse_overwriting(const fs::path& out, const fs::path& from) {
  std::error_code not_there;
  if (!fs::exists(out)) return;
  const bool same = fs::equivalent(from, out, not_there);
  if (same || is_of_a_run(out))
    throw UsageError(text(out.string(), ": exists and is ",
                          same ? "the file to be exported" : "a file of a run"),
                     {.hint = "Choose another name with --out."});
}

}  // namespace

ExportResult export_weights(const ExportOptions& options) {
  checkpoint::check_weights_ending(options.out);
  ExportResult result{.from = find_file(options)};
  refuse_overwriting(options.out, result.from);
  checkpoint::TensorFile file = checkpoint::read_weights(result.from);
  if (!options.names.empty())
    file.tensors = checkpoint::rename_weights(std::move(file.tensors), options.names);
  checkpoint::write_weights(options.out, file.tensors, file.metadata);
  result.tensors = file.tensors.size();
  for (const auto& [name, tensor] : file.tensors) result.numbers += tensor.numel();
  return result;
}

}  // namespace trestle::train
