#include "trestle/checkpoint/files/save_over_ranks.h"

#include <chrono>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/replace_folder.h"

namespace trestle::checkpoint {

namespace {

namespace fs = std::filesystem;

// A rank's message: a status letter, followed by its shard's index or its error.
constexpr char fine = '+';
constexpr char file_error = 'f', usage_error = 'u', other_error = 'e';

class Save {
 public:
  Save(const fs::path& folder, const SaveTask& task, const SaveRanks& ranks)
      : folder_(folder), task_(task), ranks_(ranks) {}

  void run() {
    try {
      agree();
      std::vector<std::string> indexes = step("shard written", [this] { return write_shard(); });
      step("folders exchanged", [&] {
        if (ranks_.rank == 0) finish(indexes);
        return std::string();
      });
    } catch (...) {
      // By now no rank writes there any more, except after a failed exchange; the next save removes
      // what a slow rank still writes then.
      if (ranks_.rank == 0) drop_fresh(folder_);
      throw;
    }
  }

 private:
  // Does this rank's work, and returns the results of all ranks. If one rank throws, all throw its
  // error.
  template <class Work>
  std::vector<std::string> step(std::string_view name, Work work) {
    std::string mine;
    std::exception_ptr error;
    try {
      mine = fine + work();
      reached(name);
    } catch (const fs::filesystem_error& refused) {
      const FileError plain(refused.code().message(), {.file = refused.path1().string()});
      error = std::make_exception_ptr(plain);
      mine = file_error + std::string(plain.what());
    } catch (const FileError& refused) {
      error = std::current_exception();
      mine = file_error + std::string(refused.what());
    } catch (const UsageError& mistake) {
      error = std::current_exception();
      mine = usage_error + std::string(mistake.what());
    } catch (const std::exception& other) {
      error = std::current_exception();
      mine = other_error + std::string(other.what());
    }
    if (ranks_.size == 1) {
      if (error) std::rethrow_exception(error);
      return {mine.substr(1)};
    }
    std::vector<std::string> all = ranks_.all_gather(mine);
    if (all.size() != static_cast<std::size_t>(ranks_.size))
      throw UsageError(
          text("all_gather returned ", all.size(), " strings for ", ranks_.size, " ranks"));
    throw_first(all);
    for (std::string& one : all) one.erase(0, 1);
    return all;
  }

  void throw_first(const std::vector<std::string>& all) const {
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const char kind = all[rank].empty() ? other_error : all[rank][0];
      if (kind == fine) continue;
      const std::string what =
          text("rank ", rank, " of ", all.size(), " could not save its files in ", folder_.string(),
               ", so nothing was saved: ", all[rank].substr(all[rank].empty() ? 0 : 1));
      if (kind == file_error) throw FileError(what);
      if (kind == usage_error) throw UsageError(what);
      throw Error(what);
    }
  }

  void agree() {
    const std::vector<std::string> all = step("folder created", [this] {
      if (ranks_.rank == 0) begin_folder(folder_);
      return task_.agreed;
    });
    for (std::size_t rank = 1; rank < all.size(); ++rank)
      if (all[rank] != all[0])
        throw UsageError(text("the ranks do not save the same state: rank 0 is at ", all[0],
                              ", but rank ", rank, " is at ", all[rank]));
  }

  std::string write_shard() {
    const fs::path fresh = fresh_folder(folder_);
    wait_for(fresh);
    const CheckpointIndex index = task_.write_shard(fresh);
    flush_folder(fresh);
    return ranks_.size == 1 ? (alone_ = index, std::string()) : format_index(index);
  }

  // Some network file systems show another machine's new folder a little later.
  void wait_for(const fs::path& fresh) const {
    using namespace std::chrono_literals;
    constexpr int most = 40;
    for (int tries = 0; !fs::is_directory(fresh); ++tries) {
      if (tries == most)
        throw FileError(
            text("this rank does not see the folder that rank 0 created"),
            {.file = fresh.string(), .hint = "All ranks need one folder on a shared file system."});
      std::this_thread::sleep_for(50ms);
    }
  }

  void finish(const std::vector<std::string>& texts) {
    const fs::path fresh = fresh_folder(folder_);
    std::vector<CheckpointIndex> indexes;
    if (ranks_.size == 1) indexes.push_back(std::move(alone_));
    for (std::size_t rank = 0; rank < texts.size() && ranks_.size > 1; ++rank)
      indexes.push_back(parse_index(texts[rank], text("the index of rank ", rank), Cover::OneRank));
    CheckpointIndex index = merge_indexes(std::move(indexes));
    index.state = task_.state;
    for (const auto& [name, bytes] : index.files) {
      std::error_code none;
      const auto here = fs::file_size(fresh / name, none);
      if (none || here != bytes)
        throw FileError(text("was written with ", bytes, " bytes, but rank 0 sees ",
                             none ? std::string("no such file") : text(here)),
                        {.file = (fresh / name).string(),
                         .hint = "All ranks need one folder on a shared file system."});
    }
    write_file(fresh / index_name, format_index(index));
    flush_folder(fresh);
    reached("index written");
    swap_in(folder_);
  }

  void reached(std::string_view name) const {
    if (task_.after) task_.after(name);
  }

  const fs::path& folder_;
  const SaveTask& task_;
  const SaveRanks& ranks_;
  CheckpointIndex alone_;  // the index of a single rank
};

}  // namespace

void save_over_ranks(const fs::path& folder, const SaveTask& task, const SaveRanks& ranks) {
  if (ranks.size < 1 || ranks.rank < 0 || ranks.rank >= ranks.size ||
      (ranks.size > 1 && !ranks.all_gather))
    throw UsageError(text("rank ", ranks.rank, " of ", ranks.size,
                          ranks.size > 1 && !ranks.all_gather ? " without all_gather" : "",
                          " cannot save a checkpoint"));
  Save(folder, task, ranks).run();
}

}  // namespace trestle::checkpoint
