#include "trestle/sharding/flat/buckets.h"

#include <map>

namespace trestle::sharding {

std::vector<std::vector<std::size_t>> assign_buckets(const std::vector<BucketItem>& items,
                                                     const std::vector<std::size_t>& order,
                                                     Bytes first_limit, Bytes limit) {
  struct Open {
    std::size_t bucket = 0;
    Bytes bytes = 0;
    bool is_open = false, first = true;
  };
  std::map<int, Open> of_kind;
  std::vector<std::vector<std::size_t>> buckets;
  for (const std::size_t item : order) {
    Open& open = of_kind[items[item].kind];
    if (!open.is_open) {
      open = {.bucket = buckets.size(), .bytes = 0, .is_open = true, .first = open.first};
      buckets.emplace_back();
    }
    buckets[open.bucket].push_back(item);
    open.bytes += items[item].bytes;
    if (open.bytes < (open.first ? first_limit : limit)) continue;
    open.is_open = open.first = false;
  }
  return buckets;
}

}  // namespace trestle::sharding
